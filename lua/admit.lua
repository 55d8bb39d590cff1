#!lua
-- uses numbers state bucket
-- Leave to send one attempt.
--
-- KEYS  1 target, 2 admission; 3 the tenant's own share, when it has one
-- ARGV  1 "flags tokens share lease ttl tag": flags 1 the breaker is observed, 2 the quota is;
--         share: the tenant's percentage; lease, ttl: milliseconds; tag: the caller, for the publication
--       2 settings (see sluice-state's script/encode.rs)
-- Reply 1 answer, 2 what an observed group would have answered or -1, 3 retry after, 4 state, 5 epoch,
--       6 open for, 7 tokens left (NONE: not limited), 8 rate in percent, 9 transition's reason (-1: none);
--       10 opener's traceparent
--
-- Nothing is taken unless everything is granted. Of several refusals the first of breaker, paused, ramp,
-- requests, tokens is said.
local NONE = -9007199254740991
local flags, tokens, share, lease, ttl = match(ARGV[1], '^([0-3]) (%d+) (%d%d?%d?) (%d+) ([1-9]%d*) %w+$')
tokens = tonumber(tokens)
if not flags or not (tokens * UNIT < LIMIT) or #lease > 15 or #ttl > 15 or (share ~= '0' and share + 0 > 100) then
  return redis.error_reply('SLUICE argument 1 is no ask')
end

local stored = call('HMGET', KEYS[1], 'k', 'c')
local own = KEYS[3] and call('HMGET', KEYS[3], 'q')
local time = call('TIME')
local now, last, count, epoch, left, requests, lag, offset, state, till, cool, successes, reference, closed, paused, rate,
  throttled = state_of(stored[1], time[1] * 1000 + floor(time[2] / 1000))
local rules, head, was = ARGV[2], nil, nil
if stored[2] ~= rules then
  -- uses settings
  rules, head, was = ruling(stored[2], rules, last, now)
  if not rules then
    return redis.error_reply('SLUICE argument 2 is no settings')
  end
end

-- The breaker.
local refusal, wait, would, probe = nil, 0, -1, 0
local permits, opener, ramp = '', '', nil
if state > 0 then
  -- uses permits
  local more = call('HMGET', KEYS[1], 'p', 'o')
  opener = more[2] or ''
  if state == 2 then
    if now < till then
      refusal, wait = 2, till - now
    else
      probe = 1
    end
  else
    local out, soonest
    permits, out, soonest = permits_out(more[1], now)
    if out >= select(13, match(rules, BREAKER)) + 0 then
      refusal, wait = 3, soonest
    else
      probe = 1
    end
  end
end
if refusal and (flags == '1' or flags == '3') then
  would, refusal = refusal, nil
end

-- The quota: paused, then the ramp, then requests, then tokens.
local observed = flags == '2' or flags == '3'
local tpm, burst, rpm, reserved = match(rules, '^%d+ (%d*) (%d+) (%d*) (%d+) ')
tpm, burst, rpm = tonumber(tpm), burst + 0, tonumber(rpm)
local rest, speed, recovery, delay = max(0, 100 - reserved), 1000000, 0, 0
if rate < 1000000 then
  -- uses pushback
  recovery, delay = match(rules, ' (%d+) (%d+);')
  recovery, delay = recovery + 0, delay + 0
  speed = rate_at(rate, throttled, recovery, delay, now)
end
left, requests, rate, lag =
  refilled(now, left, requests, last, lag, rate, throttled, tpm, burst, rpm, rest, recovery, delay, was)
local spend = true
if not refusal and now < paused then
  if observed then
    would, spend = would < 0 and 7 or would, false
  else
    refusal, wait = 7, paused - now
  end
end
if not refusal and state == 0 and closed > 0 then
  local duration, initial = match(rules, '(%d+) (%d+)$')
  duration, initial = duration + 0, initial * 100
  if now < closed + duration then
    -- uses wait
    local bucket = call('HMGET', KEYS[1], 'a')[1]
    local units, since = UNIT, closed
    if bucket then
      units, since = match(bucket, '^(%d+) (%d+)$')
      units, since = units + 0, max(since + 0, closed)
    end
    -- The share of the reference rate, in ten thousandths; it grows evenly, so its mean is exact.
    local before = initial + floor((10000 - initial) * (since - closed) / duration)
    local share_now = initial + floor((10000 - initial) * (now - closed) / duration)
    -- A second's worth, and one at least, is the most that it holds.
    local full = max(UNIT, floor(reference * share_now / 10000 * UNIT / 60))
    ramp = min(full, units + floor(max(0, now - since) * reference * (before + share_now) / 200))
    if ramp < UNIT then
      wait = wait_for(UNIT - ramp, reference * share_now / 100)
      if flags == '1' or flags == '3' then
        would, ramp = would < 0 and 4 or would, nil
      else
        refusal = 4
      end
    else
      ramp = ramp - UNIT
    end
  end
end
if not refusal and spend and rpm and requests < UNIT then
  -- uses wait
  if observed then
    would, spend = would < 0 and 6 or would, false
  else
    refusal, wait = 6, wait_for(UNIT - requests, rpm * 100 * speed / 1000000)
  end
end
local from_own, from_rest, mine, refill = 0, 0, 0, 0
if tpm and own then
  -- uses own
  share, refill = share + 0, now * 1000 - lag
  mine = own_share(own[1], refill, tpm, burst, share)
end
if not refusal and spend and tpm then
  local cost = tokens * UNIT
  from_own = min(mine, cost)
  from_rest = cost - from_own
  if tpm == 0 or from_rest > max(0, left) then
    -- uses wait
    local full, full_own = burst * rest * 60000, own and burst * share * 60000 or 0
    if tpm > 0 and burst > 0 and cost > full + full_own and left >= full and mine >= full_own then
      -- It could never fit: full buckets let one through, into debt.
      from_rest = min(from_rest, left + full)
    elseif observed then
      would, spend, from_own, from_rest = would < 0 and 5 or would, false, 0, 0
    else
      -- Both parts refill at once, each up to what it holds.
      local a, z = (own and tpm * share or 0) * speed / 1000000, tpm * rest * speed / 1000000
      refusal, wait = 5, wait_for(cost - mine - left, a + z)
      local own_full, rest_full = wait_for(full_own - mine, a), wait_for(full - left, z)
      if cost > full + full_own then
        wait = max(own_full, rest_full)
      elseif wait > own_full then
        wait = wait_for(cost - full_own - left, z)
      elseif wait > rest_full then
        wait = wait_for(cost - full - mine, a)
      end
      if own and cost <= full_own then
        wait = min(wait, wait_for(cost - mine, a))
      end
      wait = burst > 0 and max(1, wait) or LONG
    end
  end
end

-- What was decided. A nonce that has a record repeats its answer; one that is settled is refused.
local old, reason = nil, -1
if refusal then
  old = call('GET', KEYS[2])
else
  if probe == 1 and state == 2 then
    reason, state, epoch, successes = 4, 1, max(epoch + 1, now), 0
  end
  local record = '%d 0 0 %d 0 0'
  if probe == 1 or from_own > 0 or not spend then
    record = format('%%d %d %d %%d 0 %d', probe, from_own, spend and 0 or 2)
  end
  old = call('SET', KEYS[2], format(record, epoch, from_rest), 'PX', ttl, 'NX', 'GET')
end
if old then
  local then_epoch, then_probe, half = match(old, '^(%d+) (%d) %d+ %d+ %d (%d)$')
  if not half or half == '1' then
    return redis.error_reply('SLUICE this admission is settled')
  end
  if reason == 4 then
    state = 2
  end
  return {
    then_probe + 0, -1, 0, state, then_epoch + 0, state == 2 and max(0, till - now) or 0,
    tpm and floor((left + mine) / UNIT) or NONE, floor(speed / 10000), -1, opener,
  }
end

-- Write.
local taken = not refusal
if taken and spend then
  left, mine = left - from_rest, mine - from_own
  if rpm then
    requests = requests - UNIT
  end
end
if taken or head or now - last >= TOUCH then
  -- Admissions per minute, for the reference rate of a ramp.
  local turned = floor(now / 60000) ~= floor(last / 60000)
  if turned then
    -- uses reference
    call('HSET', KEYS[1], 'r', minutes_past(call('HMGET', KEYS[1], 'r')[1] or '', last, count, now))
    count = 0
  end
  local text = state_text(
    now, taken and count + 1 or count, epoch, left, requests, lag,
    offset, state, till, cool, successes, reference, closed, paused, rate, throttled
  )
  if probe == 1 and taken then
    permits = permits .. KEYS[2]:sub(-32) .. format(':%d;', now + lease)
    call('HSET', KEYS[1], 'k', text, 'p', permits)
  elseif ramp and taken then
    call('HSET', KEYS[1], 'k', text, 'a', format('%d %d', ramp, now))
  else
    call('HSET', KEYS[1], 'k', text)
  end
  if head then
    -- uses reshaped
    call('HSET', KEYS[1], 'c', head)
    if was and reshaped(was, rules) then
      call('HSET', KEYS[1], 'w', '')
    end
  end
  if turned or head then
    -- uses lifetime
    call('PEXPIRE', KEYS[1], lifetime(rules))
  end
  if own and tpm then
    call('HSET', KEYS[3], 'q', format('%d %d', mine, refill))
    call('PEXPIRE', KEYS[3], TTL)
  end
end
if reason >= 0 then
  -- uses publish
  publish(epoch, 2, 1, reason, 0, 0, 0, 0, 0, match(ARGV[1], '%w+$'), opener)
end
return {
  refusal or probe, would, wait, state, epoch, state == 2 and max(0, till - now) or 0,
  tpm and floor((left + mine) / UNIT) or NONE, floor(speed / 10000), reason, opener,
}
