//! Seeded draws for the scripted jitter: the same seed and call number give the same delay on every run,
//! however calls interleave.

/// A draw in `0.0..1.0` from a seed, the number of the call and the number of the draw within it.
pub(crate) fn draw(seed: u64, call: u64, index: u64) -> f64 {
    let mixed =
        mix(seed ^ mix(call.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ mix(index.wrapping_add(0x5851_f42d)));
    // 53 bits fill the mantissa of a double exactly.
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

/// The finaliser of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::draw;

    #[test]
    fn draws_repeat_and_spread() {
        assert_eq!(draw(7, 1, 2).to_bits(), draw(7, 1, 2).to_bits());
        let mean = (0..1000).map(|call| draw(1, call, 0)).sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
        assert!((0..1000).all(|i| (0.0..1.0).contains(&draw(3, 3, i))));
    }
}
