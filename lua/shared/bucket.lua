-- The quota: buckets of tokens and of requests, and what a 429 does to their refill.
--
-- The refill clock counts microseconds at the full rate: while pushback has shrunk the rate it runs slower
-- by as much. A bucket refills by what that clock has advanced since the bucket's last look, so the rate's
-- history is kept in one number, for the tenants' own buckets too.

-- Rate at `at`, in millionths of the nominal one: constant until `delay` after the last 429, then growing
-- by `recovery` percent per second.
local function rate_at(rate, throttled, recovery, delay, at)
  return min(1000000, rate + max(0, at - throttled - delay) * recovery * 10)
end

-- What the refill clock advances from `from` to `to`, in microseconds: the exact area under the rate.
local function advance(rate, throttled, recovery, delay, from, to)
  if rate >= 1000000 or to <= from then
    return max(0, to - from) * 1000
  end
  local start = throttled + delay
  local flat = max(0, min(to, start) - from)
  local area = flat * rate
  local rise = max(from, start)
  if to > rise then
    local full = recovery > 0 and start + ceil((1000000 - rate) / (recovery * 10)) or LIMIT
    local top = max(rise, min(to, full))
    area = area
      + (top - rise)
        * (rate_at(rate, throttled, recovery, delay, rise) + rate_at(rate, throttled, recovery, delay, top))
        / 2
      + (to - top) * 1000000
  end
  return floor(area / 1000)
end

-- `q`: the quota's own clock and its offset, then tokens, requests, last, paused until, rate, last 429 and refill
-- clock. A bucket that is not there has no tokens (nil): it begins full.
local function bucket_state(text, server)
  local tokens, requests, last, offset, paused, rate, throttled, refill =
    match(text or '', '^(%-?%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not tokens then
    return server, 0, nil, 0, server, 0, 1000000, 0, 0
  end
  last = last + 0
  local now, off = clock(last, offset + 0, server)
  return now, off, tokens + 0, requests + 0, last, paused + 0, rate + 0, throttled + 0, refill + 0
end

-- Tokens, requests, rate and refill clock at `now`. `rest` is the percentage of the tokens that no tenant has
-- reserved. A bucket whose settings before (`was`) had no limit begins full too.
local function refilled(now, tokens, requests, last, rate, throttled, refill, tpm, burst, rpm, rest, recovery, delay, was)
  local full, full_requests = burst * rest * 60000, (rpm or 0) * UNIT
  if not tokens then
    return full, full_requests, rate, refill
  end
  local ahead = advance(rate, throttled, recovery, delay, last, now)
  if rate < 1000000 and rate_at(rate, throttled, recovery, delay, now) >= 1000000 then
    rate = 1000000
  end
  tokens = min(full, tokens + floor(ahead * (tpm or 0) * rest / 1000))
  requests = min(full_requests, requests + floor(ahead * (rpm or 0) / 10))
  if was then
    local tokens_before, requests_before = match(was, '^(%d*) %d+ (%d*)')
    tokens = tokens_before == '' and full or tokens
    requests = requests_before == '' and full_requests or requests
  end
  return tokens, requests, rate, refill + ahead
end

-- A tenant's own bucket, refilled.
local function own_share(stored, refill, tpm, burst, share)
  local full = burst * share * 60000
  if not stored then
    return full
  end
  local tokens, at = match(stored, '^(%d+) (%d+)$')
  return min(full, tokens + floor(max(0, refill - at) * tpm * share / 1000))
end

-- How long `missing` units take at `speed` units per millisecond.
local function wait_for(missing, speed)
  if missing <= 0 then
    return 0
  end
  if speed <= 0 then
    return LONG
  end
  return min(LONG, ceil(missing / speed))
end
