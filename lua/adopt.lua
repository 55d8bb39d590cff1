#!lua
-- uses numbers settings breaker reference
-- Only in an agent's own home: begins from the last state that it saw of the shared one.
--
-- KEYS  1 breaker
-- ARGV  1 "state epoch open": open: milliseconds, 2 breaker settings, 3 traceparent
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
local b = call('HMGET', KEYS[1], 'k', 's', 'c', 'p')
local time = call('TIME')
local server = time[1] * 1000 + floor(time[2] / 1000)
local now, offset, last, count = breaker_clock(b[1], server)
local rules, head = ruling(b[3], ARGV[2], last, now, BREAKER)
if not rules then
  return redis.error_reply('SLUICE argument 2 is no breaker settings')
end
local own, own_epoch, till, cool, successes, reference, closed = breaker_state(b[2], now)
epoch = epoch + 0
local probing = false
if own == 1 and state ~= '0' then
  local _, out = permits_out(b[4], now)
  probing = out > 0
end
if not (own == 2 and now < till) and not probing then
  own, own_epoch, till = state == '0' and 0 or 2, max(epoch, b[2] and own_epoch + 1 or 0), now + open
  if floor(now / 60000) ~= floor(last / 60000) then
    call('HSET', KEYS[1], 'r', minutes_past(call('HMGET', KEYS[1], 'r')[1] or '', last, count, now))
    count = 0
  end
  call(
    'HSET', KEYS[1], 'k', clock_text(now, count, offset),
    's', breaker_text(own, own_epoch, till, cool, 0, reference, 0), 'p', '', 'w', '', 'o', ARGV[3]
  )
  call('HSET', KEYS[1], 'c', head or b[3])
  call('PEXPIRE', KEYS[1], lifetime(rules))
end
return { own, own_epoch }
