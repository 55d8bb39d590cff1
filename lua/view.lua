#!lua flags=no-writes
-- uses numbers settings window breaker bucket
-- A target's state, for agents that (re)connect and for people.
--
-- KEYS  1 breaker, 2 quota
-- ARGV  1 breaker settings, 2 quota settings, used where none are stored
-- Reply 1 state, 2 epoch, 3 open for, 4 calls, 5 failures, 6 slow, 7 stalls, 8 probes out,
--       9 tokens left (NONE: not limited), 10 paused for, 11 rate in percent, 12 ramping; 13 opener's traceparent
local NONE = -9007199254740991
local b = call('HMGET', KEYS[1], 'c', 'k', 's', 'w', 'p', 'o', 'm')
local q = call('HMGET', KEYS[2], 'c', 'm', 'q')
local time = call('TIME')
local server = time[1] * 1000 + floor(time[2] / 1000)

local now = breaker_clock(b[2], server)
-- The revision 0 never replaces anything, and nothing is written here: only settings that are used by
-- nobody give way to the caller's.
local rules = ruling(b[1], b[7], 0, ARGV[1], now, BREAKER)
local at, _, left, requests, last, paused, rate, throttled, refill = bucket_state(q[3], server)
local quota = ruling(q[1], q[2], 0, ARGV[2], at, QUOTA)
if not rules or not quota then
  return redis.error_reply('SLUICE arguments are no settings')
end
local state, epoch, till, _, _, _, closed = breaker_state(b[3], now)
local _, calls, failures, slow, stalls = window(rules, b[4], now)
local _, out = permits_out(b[5], now)
local ramp = match(rules, '(%d+) %d+$')

local tpm, burst, rpm, reserved, _, _, _, _, recovery, delay = match(quota, QUOTA)
tpm, rpm, recovery, delay = tonumber(tpm), tonumber(rpm), recovery + 0, delay + 0
local rest = max(0, 100 - reserved)
left = refilled(at, left, requests, last, rate, throttled, refill, tpm, burst + 0, rpm, rest, recovery, delay)
return {
  state, epoch, state == 2 and max(0, till - now) or 0, calls, failures, slow, stalls, state == 1 and out or 0,
  tpm and floor(left / UNIT) or NONE, max(0, paused - at), floor(rate_at(rate, throttled, recovery, delay, at) / 10000),
  (state == 0 and closed > 0 and now < closed + ramp) and 1 or 0, state > 0 and b[6] or '',
}
