#!lua
-- uses numbers state bucket settings permits reference lifetime
-- Only in an agent's own home: begins from the last state that it saw of the shared one.
--
-- KEYS  1 target
-- ARGV  1 "state epoch open": open: milliseconds, 2 settings, 3 traceparent
-- Reply 1 state, 2 epoch
--
-- A half-open breaker is adopted as an open one whose cool-down is over: the next exchange probes.
-- A breaker that is open here stays open until its own time, and one whose probe is out stays half-open: an
-- outage that comes and goes must not let another probe out beside it. Epochs go up here too, so that no verdict
-- of an earlier outage counts.
local state, epoch, open = match(ARGV[1], '^([0-2]) (%d+) (%d+)$')
if not state or not (epoch + open < LIMIT) then
  return redis.error_reply('SLUICE argument 1 is no state')
end
local stored = call('HMGET', KEYS[1], 'k', 'c', 'p')
local time = call('TIME')
local now, last, count, own_epoch, left, requests, lag, offset, own, till, cool, _, reference, _, paused, rate,
  throttled = state_of(stored[1], time[1] * 1000 + floor(time[2] / 1000))
local rules, head, was = ruling(stored[2], ARGV[2], last, now)
if not rules then
  return redis.error_reply('SLUICE argument 2 is no settings')
end
epoch = epoch + 0
local probing = false
if own == 1 and state ~= '0' then
  local _, out = permits_out(stored[3], now)
  probing = out > 0
end
if not (own == 2 and now < till) and not probing then
  own, own_epoch = state == '0' and 0 or 2, max(epoch, stored[1] and own_epoch + 1 or 0)
  till = own == 0 and 0 or now + open
  if floor(now / 60000) ~= floor(last / 60000) then
    call('HSET', KEYS[1], 'r', minutes_past(call('HMGET', KEYS[1], 'r')[1] or '', last, count, now))
    count = 0
  end
  local tpm, burst, rpm, reserved, _, _, _, _, recovery, delay = match(rules, QUOTA)
  tpm, rpm = tonumber(tpm), tonumber(rpm)
  left, requests, rate, lag = refilled(
    now, left, requests, last, lag, rate, throttled, tpm, burst + 0, rpm, max(0, 100 - reserved), recovery + 0, delay + 0,
    was
  )
  local text = state_text(
    now, count, own_epoch, left, requests, lag, offset, own, till, cool, 0, reference, 0, paused, rate, throttled
  )
  call('HSET', KEYS[1], 'k', text, 'p', '', 'w', '', 'o', ARGV[3], 'c', head or stored[2])
  call('PEXPIRE', KEYS[1], lifetime(rules))
end
return { own, own_epoch }
