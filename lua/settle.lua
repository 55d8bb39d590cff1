#!lua
-- uses numbers state bucket
-- What an attempt meant to the breaker, and what it used.
--
-- KEYS  1 target, 2 admission; 3 the tenant's own share, when it has one
-- ARGV  1 "epoch verdict used pause draw share tag": verdict 0 success, 1 failure, 2 slow, 3 stall,
--         4 throttled, 5 ignored, 6 cancelled, 7 none now; used: tokens, empty: later; pause: milliseconds that
--         a 429 asked for, empty: none named; draw: 0 … 2^31 - 1, the jitter of a cool-down
--       2 settings; 3 traceparent, when the verdict could open the breaker
-- Reply 1 state, 2 epoch, 3 open for, 4 tokens forgiven; 5 empty, or the transition:
--         "reason calls failures slow stalls", the latter four of the window
--
-- Verdict and tokens are two halves; each takes effect once. A probe that succeeded may still stall, once.
local TOMBSTONE = '60000'
local asked, verdict, used, pause, draw, share =
  match(ARGV[1], '^(%d+) ([0-7]) (%d*) (%d*) (%d+) (%d%d?%d?) %w+$')
asked, verdict, used, pause, draw = tonumber(asked), tonumber(verdict), tonumber(used), tonumber(pause), tonumber(draw)
if not asked or not (asked + (used or 0) * UNIT + (pause or 0) < LIMIT) or draw >= 2147483648
  or (share ~= '0' and share + 0 > 100) then
  return redis.error_reply('SLUICE argument 1 is no settlement')
end

local stored = call('HMGET', KEYS[1], 'k', 'c', 'w')
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

-- The record. Most settlements bring both halves and leave nothing to be done: theirs is read and its tombstone written
-- in one. A record that was lost (or never was) took nothing; its verdict counts in its own epoch.
local whole = verdict < 7 and used
local record
if whole then
  record = call('SET', KEYS[2], '0 0 0 0 1 1', 'PX', TOMBSTONE, 'GET')
else
  record = call('GET', KEYS[2])
end
local epoch_then, probe, from_own, from_rest, half_verdict, half_tokens = asked, 0, 0, 0, 0, 0
if record then
  local plain_epoch, plain_rest = match(record, '^(%d+) 0 0 (%d+) 0 0$')
  if plain_epoch then
    epoch_then, from_rest = plain_epoch + 0, plain_rest + 0
  else
    epoch_then, probe, from_own, from_rest, half_verdict, half_tokens =
      match(record, '^(%d+) (%d) (%d+) (%d+) (%d) (%d)$')
    epoch_then, probe, from_own, from_rest = epoch_then + 0, probe + 0, from_own + 0, from_rest + 0
    half_verdict, half_tokens = half_verdict + 0, half_tokens + 0
  end
end
local late_stall = half_verdict == 2 and verdict == 3
local judge = verdict < 7 and (half_verdict == 0 or late_stall)
local pay = used and half_tokens ~= 1
local debit = used and half_tokens == 0

-- The breaker.
local window, from, reason = nil, -1, -1
local permits, returned = '', false
local calls, failures, slow, stalls, row, seen = 0, 0, 0, 0, 0, 0
local fresh = false
if was then
  -- uses reshaped
  fresh = reshaped(was, rules)
end
if stored[1] and judge and (epoch == epoch_then or late_stall) then
  if state == 0 and verdict <= 3 then
    local text = not fresh and stored[3] or ''
    local kind, span, buckets, minimum = match(rules, '^(%d+) (%d+) (%d+) (%d+) ', rules:find(';', 1, true) + 1)
    if kind == '0' then
      -- Most calls are successes that meet the newest bucket. What those change stands in front.
      local at, all, newest, others, bad = match(text, '^(%d+) (%d+) (%d+) ()0 (%d+ %d+ %d+) ')
      if verdict == 0 and at and floor(now / floor(span / buckets)) <= at + 0 then
        calls = all + 1
        window = format('%s %d %d %s', at, calls, newest + 1, text:sub(others))
        if bad ~= '0 0 0' then
          failures, slow, stalls = match(bad, '(%d+) (%d+) (%d+)')
          failures, slow, stalls = failures + 0, slow + 0, stalls + 0
        end
      else
        -- uses time_window
        window, calls, failures, slow, stalls, row = time_window(text, span + 0, buckets + 0, now, verdict)
      end
    else
      -- uses count_window
      window, calls, failures, slow, stalls, row, seen = count_window(text, span + 0, verdict)
    end
    if failures + slow + stalls > 0 then
      local _, _, _, _, failure_rate, slow_rate, stall_rate, in_a_row = match(rules, BREAKER)
      in_a_row = in_a_row + 0
      if calls < minimum + 0 then
        reason = -1
      elseif failures > 0 and failures * 100 >= calls * failure_rate then
        reason = 0
      elseif slow > 0 and slow * 100 >= calls * slow_rate then
        reason = 1
      elseif stalls > 0 and stalls * 100 >= calls * stall_rate then
        reason = 2
      end
      if reason < 0 and in_a_row > 0 and row >= in_a_row then
        reason = 3
      end
    end
  elseif state == 1 then
    -- uses permits
    local kept, _, _, held = permits_out(call('HMGET', KEYS[1], 'p')[1], now, KEYS[2]:sub(-32), true)
    if late_stall then
      reason = 5
    elseif held then
      permits, returned = kept, true
      if verdict == 0 then
        successes = successes + 1
        if successes >= select(14, match(rules, BREAKER)) + 0 then
          reason = 7
        end
      elseif verdict <= 3 then
        reason = 5
      elseif verdict == 4 then
        reason = 6
      end
    end
  end
end

-- The transition.
if reason >= 0 then
  from, epoch = state, max(epoch + 1, now)
  local kind, span, _, minimum, _, _, _, _, base, jitter, growth, longest_cool, _, _, ramp = match(rules, BREAKER)
  if reason == 7 then
    state, till, successes, closed = 0, 0, 0, now
  else
    if state == 0 then
      -- uses reference
      -- The ramp and one clean window since it closed: the next trip is a first one again.
      local clean = closed == 0
        or kind == '0' and now >= closed + ramp + span
        or kind == '1' and now >= closed + ramp and seen >= span + 0
      local observed = busiest(call('HMGET', KEYS[1], 'r')[1] or '', last, count, now)
      observed = max(observed, kind == '0' and math.ceil(minimum * 60000 / span) or minimum + 0, 1)
      if clean then
        cool, reference = 0, observed
      else
        reference = max(reference, observed)
      end
    end
    if reason == 6 then
      local longest, default_pause = select(5, match(rules, QUOTA))
      till = now + max(1000, min(pause or default_pause + 0, longest + 0))
    else
      cool = min(longest_cool + 0, cool == 0 and base + 0 or floor(cool * growth / 100))
      local span_of_jitter = floor(cool * jitter / 100)
      till = now + max(0, cool - span_of_jitter + floor(draw / 2147483648 * (2 * span_of_jitter + 1)))
    end
    state, successes = 2, 0
  end
  permits = ''
end

-- The tokens: what was reserved comes back, the shared part first; what was used beyond it goes into debt,
-- down to -burst, and the rest is forgiven.
local throttle = (verdict == 4 or pause) and (judge or verdict == 7)
local tpm, burst, rpm, reserved = match(rules, '^%d+ (%d*) (%d+) (%d*) (%d+) ')
tpm, burst, rpm = tonumber(tpm), burst + 0, tonumber(rpm)
local rest = max(0, 100 - reserved)
local longest, default_pause, shrink, least, recovery, delay = 0, 0, 0, 0, 0, 0
if throttle or rate < 1000000 then
  longest, default_pause, shrink, least, recovery, delay = select(5, match(rules, QUOTA))
  recovery, delay = recovery + 0, delay + 0
end
left, requests, rate, lag =
  refilled(now, left, requests, last, lag, rate, throttled, tpm, burst, rpm, rest, recovery, delay, was)
local forgiven, own_text = 0, nil
if debit and tpm then
  local full = burst * rest * 60000
  local mine, refill = 0, 0
  if own then
    -- uses own
    refill = now * 1000 - lag
    mine = own_share(own[1], refill, tpm, burst, share)
  end
  local more = used * UNIT - from_own - from_rest
  if more > 0 then
    local part = min(mine, more)
    mine, more = mine - part, more - part
    part = max(0, min(more, left + full))
    left, forgiven = left - part, more - part
  else
    local part = min(-more, from_rest)
    left, mine = min(full, left + part), min(own and burst * share * 60000 or 0, mine - more - part)
  end
  own_text = own and format('%d %d', mine, refill)
end
if throttle then
  -- uses pushback
  rate = rate_at(rate, throttled, recovery, delay, now)
  if now >= paused then
    rate = max(least * 10000, floor(rate * shrink / 100))
  end
  paused, throttled = max(paused, now + min(pause or default_pause + 0, longest + 0)), now
end

-- Write: the record where that is not done, the tenant's share, the target.
if judge then
  half_verdict = probe == 1 and verdict == 0 and 2 or 1
end
if pay then
  half_tokens = 1
end
if not record then
  half_verdict, half_tokens = 1, 1
end
if whole and half_verdict == 2 or not whole and (judge or pay or not record) then
  local consumed = format('%d %d %d %d %d %d', epoch_then, probe, from_own, from_rest, half_verdict, half_tokens)
  if half_verdict > 0 and half_tokens == 1 then
    call('SET', KEYS[2], consumed, 'PX', TOMBSTONE)
  else
    call('SET', KEYS[2], consumed, 'KEEPTTL')
  end
end
if own_text then
  call('HSET', KEYS[3], 'q', own_text)
  call('PEXPIRE', KEYS[3], TTL)
end
local opener = ARGV[3] or ''
local used_now = debit and tpm or throttle
if used_now or reason >= 0 or returned or (stored[1] and (head or now - last >= TOUCH)) then
  local turned = floor(now / 60000) ~= floor(last / 60000)
  if turned then
    -- uses reference
    call('HSET', KEYS[1], 'r', minutes_past(call('HMGET', KEYS[1], 'r')[1] or '', last, count, now))
    count = 0
  end
  local text = state_text(
    now, count, epoch, left, requests, lag,
    offset, state, till, cool, successes, reference, closed, paused, rate, throttled
  )
  if window then
    call('HSET', KEYS[1], 'k', text, 'w', window)
  else
    call('HSET', KEYS[1], 'k', text)
  end
  if head then
    call('HSET', KEYS[1], 'c', head)
  end
  if turned or head then
    -- uses lifetime
    call('PEXPIRE', KEYS[1], lifetime(rules))
  end
elseif window then
  call('HSET', KEYS[1], 'w', window)
end
if reason >= 0 or returned then
  call('HSET', KEYS[1], 'p', permits)
  if reason == 7 then
    -- A new window, and a ramp whose bucket holds one.
    call('HSET', KEYS[1], 'w', '', 'a', format('%d %d', UNIT, now))
  elseif reason >= 0 then
    call('HSET', KEYS[1], 'o', opener)
  end
elseif fresh and not window then
  call('HSET', KEYS[1], 'w', '')
end
local open_for = state == 2 and max(0, till - now) or 0
local transition = ''
if reason >= 0 then
  -- uses publish
  publish(epoch, from, state, reason, open_for, calls, failures, slow, stalls, match(ARGV[1], '%w+$'), opener)
  transition = format('%d %d %d %d %d', reason, calls, failures, slow, stalls)
end
return { state, epoch, open_for, math.ceil(forgiven / UNIT), transition }
