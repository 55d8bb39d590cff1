#!lua
-- uses numbers settings breaker
-- Only in an agent's own home: begins from the last state that it saw of the shared one.
--
-- KEYS  1 breaker
-- ARGV  1 "revision state epoch open": open: milliseconds, 2 breaker settings, 3 traceparent
-- Reply 1 state, 2 epoch
--
-- A half-open breaker is adopted as an open one whose cool-down is over: the next exchange probes.
-- A breaker that is open here stays open until its own time. Epochs go up here too, so that no verdict of an
-- earlier outage counts.
local revision, state, epoch, open = match(ARGV[1], '^(%d+) ([0-2]) (%d+) (%d+)$')
if not revision or not (revision + epoch + open < LIMIT) then
  return redis.error_reply('SLUICE argument 1 is no state')
end
local b = call('HMGET', KEYS[1], 'c', 'k', 's', 'm')
local time = call('TIME')
local server = time[1] * 1000 + floor(time[2] / 1000)
local now, offset = breaker_clock(b[2], server)
local rules, head = ruling(b[1], b[4], revision + 0, ARGV[2], now, BREAKER)
if not rules then
  return redis.error_reply('SLUICE argument 2 is no breaker settings')
end
local own, own_epoch, till, cool, successes, reference, closed = breaker_state(b[3], now)
epoch = epoch + 0
if not (own == 2 and now < till) then
  own, own_epoch, till = state == '0' and 0 or 2, max(epoch, b[3] and own_epoch + 1 or 0), now + open
  call(
    'HSET', KEYS[1], 'k', format('%.0f %.0f', now, offset), 'p', '', 'w', '', 'o', ARGV[3],
    's', format('%d %.0f %.0f %.0f 0 %.0f 0', own, own_epoch, till, cool, reference)
  )
  call('HSET', KEYS[1], 'c', rules, 'm', head or b[4])
  call('PEXPIRE', KEYS[1], lifetime(rules))
end
return { own, own_epoch }
