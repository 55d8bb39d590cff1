-- Rate at `at`, in millionths of the nominal one: constant until `delay` after the last 429, then growing
-- by `recovery` percent per second.
local function rate_at(rate, throttled, recovery, delay, at)
  return math.min(1000000, rate + math.max(0, at - throttled - delay) * recovery * 10)
end
