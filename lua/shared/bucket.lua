-- The quota: buckets of tokens and of requests, and what a 429 does to their refill.
--
-- The refill clock counts microseconds at the full rate: while pushback has shrunk the rate it runs slower
-- by as much. A bucket refills by what that clock has advanced since the bucket's last look, so the rate's
-- history is kept in one number, for the tenants' own buckets too: how far it lags behind the quota's clock.

-- Its clock has not stepped back, nothing is paused, and the rate is all of it.
local NORMAL = '0 0 1000000 0'

-- Rate at `at`, in millionths of the nominal one: constant until `delay` after the last 429, then growing
-- by `recovery` percent per second.
local function rate_at(rate, throttled, recovery, delay, at)
  return math.min(1000000, rate + math.max(0, at - throttled - delay) * recovery * 10)
end

-- `q`: tokens, requests, last use, the refill clock's lag (as text), then, unless all is normal, the clock's offset,
-- paused until, rate, and last 429. Results: the quota's own clock, its offset, and the rest in that order. A bucket
-- that is not there has no tokens (nil): it begins full.
local function bucket_state(text, server)
  if not text then
    return server, 0, nil, 0, server, '0', 0, 1000000, 0
  end
  local tokens, requests, last, lag, more = text:match('^(%-?%d+) (%d+) (%d+) (%d+) (.+)$')
  tokens, requests, last = tokens + 0, requests + 0, last + 0
  if more == NORMAL and server >= last then
    return server, 0, tokens, requests, last, lag, 0, 1000000, 0
  end
  local offset, paused, rate, throttled = more:match('^(%d+) (%d+) (%d+) (%d+)$')
  local now, ahead = clock(last, offset + 0, server)
  return now, ahead, tokens, requests, last, lag, paused + 0, rate + 0, throttled + 0
end

local function bucket_text(tokens, requests, at, lag, offset, paused, rate, throttled)
  local more = NORMAL
  if offset > 0 or at < paused or rate < 1000000 then
    more = ('%d %d %d %d'):format(offset, paused, rate, throttled)
  end
  return ('%d %d %d %s %s'):format(tokens, requests, at, lag, more)
end

-- Tokens, requests, rate and lag at `now`. `rest` is the percentage of the tokens that no tenant has
-- reserved. A bucket whose settings before (`was`) had no limit begins full too.
local function refilled(now, tokens, requests, last, lag, rate, throttled, tpm, burst, rpm, rest, recovery, delay, was)
  local full, full_requests = burst * rest * 60000, (rpm or 0) * UNIT
  if not tokens then
    return full, full_requests, rate, lag
  end
  local passed = math.max(0, now - last) * 1000
  local ahead = passed
  if rate < 1000000 and passed > 0 then
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

-- A tenant's own bucket, refilled.
local function own_share(stored, refill, tpm, burst, share)
  local full = burst * share * 60000
  if not stored then
    return full
  end
  local tokens, at = stored:match('^(%d+) (%d+)$')
  return math.min(full, tokens + math.floor(math.max(0, refill - at) * tpm * share / 1000))
end

-- How long `missing` units take at `speed` units per millisecond.
local function wait_for(missing, speed)
  if missing <= 0 then
    return 0
  end
  if speed <= 0 then
    return LONG
  end
  return math.min(LONG, math.ceil(missing / speed))
end
