#!lua flags=no-writes
-- uses numbers state bucket settings time_window count_window permits pushback
-- A target's state, for agents that (re)connect and for people.
--
-- KEYS  1 target
-- ARGV  1 settings, used where none are stored
-- Reply 1 state, 2 epoch (0: nobody has called the target yet), 3 open for, 4 calls, 5 failures, 6 slow, 7 stalls,
--       8 probes out, 9 tokens left (NONE: not limited), 10 paused for, 11 rate in percent, 12 ramping; 13 opener's traceparent
local NONE = -9007199254740991
local stored = call('HMGET', KEYS[1], 'k', 'c', 'w', 'p', 'o')
local time = call('TIME')
local now, last, _, epoch, left, requests, lag, _, state, till, _, _, _, closed, paused, rate, throttled =
  state_of(stored[1], time[1] * 1000 + floor(time[2] / 1000))
-- The revision 0 never replaces anything, and nothing is written here: only settings that are used by
-- nobody give way to the caller's.
local rules = ruling(stored[2], ARGV[1], last, now)
if not rules then
  return redis.error_reply('SLUICE argument 1 is no settings')
end
local kind, span, buckets = match(rules, BREAKER)
local calls, failures, slow, stalls
if kind == '0' then
  _, calls, failures, slow, stalls = time_window(stored[3] or '', span + 0, buckets + 0, now)
else
  _, calls, failures, slow, stalls = count_window(stored[3] or '', span + 0)
end
local _, out = permits_out(stored[4], now)
local ramp = match(rules, '(%d+) %d+$')

local tpm, burst, rpm, reserved, _, _, _, _, recovery, delay = match(rules, QUOTA)
tpm, rpm, recovery, delay = tonumber(tpm), tonumber(rpm), recovery + 0, delay + 0
local rest = max(0, 100 - reserved)
left = refilled(now, left, requests, last, lag, rate, throttled, tpm, burst + 0, rpm, rest, recovery, delay)
return {
  -- The epoch of a target that is not there would be another one at each look.
  state, stored[1] and epoch or 0, state == 2 and max(0, till - now) or 0, calls, failures, slow, stalls,
  state == 1 and out or 0, tpm and floor(left / UNIT) or NONE, max(0, paused - now),
  floor(rate_at(rate, throttled, recovery, delay, now) / 10000), (state == 0 and closed > 0 and now < closed + ramp) and 1 or 0, state > 0 and stored[5] or '',
}
