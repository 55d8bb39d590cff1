#!lua
-- uses numbers settings window breaker reference bucket
-- What an attempt meant to the breaker, and what it used.
--
-- KEYS  1 breaker, 2 quota, 3 admission; 4 the tenant's own share, when it has one
-- ARGV  1 "epoch verdict used pause draw share tag": verdict 0 success, 1 failure, 2 slow, 3 stall,
--         4 throttled, 5 ignored, 6 cancelled, 7 none now; used: tokens, empty: later; pause: milliseconds that
--         a 429 asked for, empty: none named; draw: 0 … 2^31 - 1, the jitter of a cool-down
--       2 breaker settings, 3 quota settings, 4 channel, 5 traceparent
-- Reply 1 state, 2 epoch, 3 open for, 4 tokens forgiven, 5 transition's reason (-1: none),
--       6 calls, 7 failures, 8 slow, 9 stalls in the window at the transition
--
-- Verdict and tokens are two halves; each takes effect once. A probe that succeeded may still stall, once.
local TOMBSTONE = 60000
local asked, verdict, used, pause, draw, share, tag =
  match(ARGV[1], '^(%d+) ([0-7]) (%d*) (%d*) (%d+) (%d%d?%d?) (%w+)$')
asked, verdict, used, pause, draw = tonumber(asked), tonumber(verdict), tonumber(used), tonumber(pause), tonumber(draw)
if not asked or not (asked + (used or 0) * UNIT + (pause or 0) < LIMIT) or draw >= 2147483648
  or (share ~= '0' and share + 0 > 100) then
  return redis.error_reply('SLUICE argument 1 is no settlement')
end

local record = call('GET', KEYS[3])
local b = call('HMGET', KEYS[1], 'k', 's', 'c', 'w')
local q = call('HMGET', KEYS[2], 'q', 'c')
local own = KEYS[4] and call('HMGET', KEYS[4], 'q')
local time = call('TIME')
local server = time[1] * 1000 + floor(time[2] / 1000)

local now, offset, last, count = breaker_clock(b[1], server)
local rules, head, replaced = ruling(b[3], ARGV[2], last, now, BREAKER)
if not rules then
  return redis.error_reply('SLUICE argument 2 is no breaker settings')
end
local at, off, left, requests, last_at, lag, paused, rate, throttled = bucket_state(q[1], server)
local quota, quota_head, quota_was = ruling(q[2], ARGV[3], last_at, at, QUOTA)
if not quota then
  return redis.error_reply('SLUICE argument 3 is no quota settings')
end
local tpm, burst, rpm, reserved = match(quota, '^%d+ (%d*) (%d+) (%d*) (%d+) ')
tpm, burst, rpm = tonumber(tpm), burst + 0, tonumber(rpm)

-- The record. One that was lost (or never was) took nothing; its verdict counts in its own epoch.
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
local state, epoch, till, cool, successes, reference, closed = breaker_state(b[2], now)
local reshaped = replaced and match(replaced, '^%d+ (%d+ %d+ %d+)') ~= match(rules, '^%d+ (%d+ %d+ %d+)')
local permits, window_text, from, reason = '', nil, -1, -1
local text, calls, failures, slow, stalls, row, seen = '', 0, 0, 0, 0, 0, 0
local returned = false
if b[2] and judge and (epoch == epoch_then or late_stall) then
  if state == 0 and verdict <= 3 then
    local kind, span, buckets, minimum = match(rules, '^%d+ (%d+) (%d+) (%d+) (%d+) ')
    text = not reshaped and b[4] or ''
    if kind == '0' then
      window_text, calls, failures, slow, stalls, row = time_window(text, span + 0, buckets + 0, now, verdict)
    else
      window_text, calls, failures, slow, stalls, row, seen = count_window(text, span + 0, verdict)
    end
    local in_a_row = 0
    if failures + slow + stalls > 0 then
      local failure_rate, slow_rate, stall_rate
      failure_rate, slow_rate, stall_rate, in_a_row = match(rules, '^%d+ %d+ %d+ %d+ %d+ (%d+) (%d+) (%d+) (%d+)')
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
    end
    if reason < 0 and in_a_row > 0 and row >= in_a_row then
      reason = 3
    end
  elseif state == 1 then
    local kept, _, _, held = permits_out(call('HMGET', KEYS[1], 'p')[1], now, KEYS[3]:sub(-32), true)
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
      local longest, default_pause = match(quota, ' %d+ (%d+) (%d+) %d+ %d+ %d+ %d+$')
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
local forgiven, quota_text, own_text = 0, nil, nil
if (debit and tpm) or throttle then
  local rest = max(0, 100 - reserved)
  local full = burst * rest * 60000
  local longest, default_pause, shrink, least, recovery, delay = 0, 0, 0, 0, 0, 0
  if throttle or rate < 1000000 then
    longest, default_pause, shrink, least, recovery, delay =
      match(quota, ' %d+ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    recovery, delay = recovery + 0, delay + 0
  end
  left, requests, rate, lag =
    refilled(at, left, requests, last_at, lag, rate, throttled, tpm, burst, rpm, rest, recovery, delay, quota_was)
  if debit and tpm then
    local refill = at * 1000 - lag
    local mine = own and own_share(own[1], refill, tpm, burst, share) or 0
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
    rate = rate_at(rate, throttled, recovery, delay, at)
    if at >= paused then
      rate = max(least * 10000, floor(rate * shrink / 100))
    end
    paused, throttled = max(paused, at + min(pause or default_pause + 0, longest + 0)), at
  end
  quota_text = bucket_text(left, requests, at, lag, off, paused, rate, throttled)
end

-- Write: the record, the quota, the breaker.
if judge or pay or not record then
  if judge then
    half_verdict = probe == 1 and verdict == 0 and 2 or 1
  end
  if pay then
    half_tokens = 1
  end
  if not record then
    half_verdict, half_tokens = 1, 1
  end
  local consumed = format('%d %d %d %d %d %d', epoch_then, probe, from_own, from_rest, half_verdict, half_tokens)
  if half_verdict > 0 and half_tokens == 1 then
    call('SET', KEYS[3], consumed, 'PX', TOMBSTONE)
  else
    call('SET', KEYS[3], consumed, 'KEEPTTL')
  end
end
if quota_text then
  call('HSET', KEYS[2], 'q', quota_text)
  if own_text then
    call('HSET', KEYS[4], 'q', own_text)
    call('PEXPIRE', KEYS[4], TTL)
  end
  if quota_head then
    call('HSET', KEYS[2], 'c', quota_head)
  end
  if quota_head or floor(at / 60000) ~= floor(last_at / 60000) then
    call('PEXPIRE', KEYS[2], TTL)
  end
end
local opener = ARGV[5]
if b[2] then
  local turned = floor(now / 60000) ~= floor(last / 60000)
  if reason >= 0 or returned or head or now - last >= TOUCH then
    if turned then
      call('HSET', KEYS[1], 'r', minutes_past(call('HMGET', KEYS[1], 'r')[1] or '', last, count, now))
      count = 0
    end
    call('HSET', KEYS[1], 'k', clock_text(now, count, offset))
    if turned or head then
      call('PEXPIRE', KEYS[1], lifetime(rules))
    end
  end
  if reason >= 0 or returned then
    call(
      'HSET', KEYS[1], 'p', permits,
      's', breaker_text(state, epoch, till, cool, successes, reference, closed)
    )
  end
  if reason == 7 then
    -- A new window, and a ramp whose bucket holds one.
    call('HSET', KEYS[1], 'w', '', 'a', format('%d %d', UNIT, now))
  elseif window_text then
    call('HSET', KEYS[1], 'w', window_text)
  elseif reshaped then
    call('HSET', KEYS[1], 'w', '')
  end
  if reason >= 0 and state == 2 then
    call('HSET', KEYS[1], 'o', opener)
  end
  if head then
    call('HSET', KEYS[1], 'c', head)
  end
end
local open_for = state == 2 and max(0, till - now) or 0
if reason >= 0 then
  redis.pcall(
    'PUBLISH', ARGV[4],
    match(KEYS[1], '{(%w+)}')
      .. format(' %d %d %d %d %d %d %d %d %d ', epoch, from, state, reason, open_for, calls, failures, slow, stalls)
      .. tag .. ' ' .. opener
  )
end
return {
  state, epoch, open_for, math.ceil(forgiven / UNIT), reason, calls, failures, slow, stalls,
}
