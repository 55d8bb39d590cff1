-- The quota: buckets of tokens and of requests, and what a 429 does to their refill.
--
-- The refill clock counts microseconds at the full rate: while pushback has shrunk the rate it runs slower
-- by as much. A bucket refills by what that clock has advanced since the bucket's last look, so the rate's
-- history is kept in one number, for the tenants' own buckets too: how far it lags behind the target's clock.

-- Tokens, requests, rate and lag at `now`. `rest` is the percentage of the tokens that no tenant has
-- reserved. A bucket whose settings before (`was`) had no limit begins full too.
local function refilled(now, tokens, requests, last, lag, rate, throttled, tpm, burst, rpm, rest, recovery, delay, was)
  local full, full_requests = burst * rest * 60000, (rpm or 0) * UNIT
  if not tokens then
    return full, full_requests, rate, lag
  end
  local passed = (now - last) * 1000
  local ahead = passed
  if rate < 1000000 and passed > 0 then
    -- uses pushback
    -- The exact area under the rate.
    local start = throttled + delay
    local area, rise = math.max(0, math.min(now, start) - last) * rate, math.max(last, start)
    local then_rate, now_rate = rate_at(rate, throttled, recovery, delay, rise), rate_at(rate, throttled, recovery, delay, now)
    if now > rise then
      local top = recovery > 0 and start + math.ceil((1000000 - rate) / (recovery * 10)) or LIMIT
      top = math.max(rise, math.min(now, top))
      area = area
        + (top - rise) * (then_rate + rate_at(rate, throttled, recovery, delay, top)) / 2
        + (now - top) * 1000000
    end
    ahead = math.floor(area / 1000)
    lag = ('%d'):format(lag + passed - ahead)
    rate = now_rate >= 1000000 and 1000000 or rate
  end
  tokens = min(full, tokens + floor(ahead * (tpm or 0) * rest / 1000))
  requests = min(full_requests, requests + floor(ahead * (rpm or 0) / 10))
  if was then
    local tokens_before, requests_before = was:match('^%d+ (%d*) %d+ (%d*)')
    tokens = tokens_before == '' and full or tokens
    requests = requests_before == '' and full_requests or requests
  end
  return tokens, requests, rate, lag
end
