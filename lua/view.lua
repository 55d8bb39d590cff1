#!lua flags=no-writes
-- uses numbers settings window breaker bucket
-- A target's state, for agents that (re)connect and for people.
--
-- KEYS  1 breaker, 2 quota
-- ARGV  1 breaker settings, 2 quota settings, used where none are stored
-- Reply 1 state, 2 epoch, 3 open for, 4 calls, 5 failures, 6 slow, 7 stalls, 8 probes out,
--       9 tokens left (NONE: not limited), 10 paused for, 11 rate in percent, 12 ramping; 13 opener's traceparent
local NONE = -9007199254740991
local b = call('HMGET', KEYS[1], 'k', 's', 'c', 'w', 'p', 'o')
local q = call('HMGET', KEYS[2], 'q', 'c')
local time = call('TIME')
local server = time[1] * 1000 + floor(time[2] / 1000)

local now, _, last = breaker_clock(b[1], server)
-- The revision 0 never replaces anything, and nothing is written here: only settings that are used by
-- nobody give way to the caller's.
local rules = ruling(b[3], ARGV[1], last, now, BREAKER)
local at, _, left, requests, last_at, lag, paused, rate, throttled = bucket_state(q[1], server)
local quota = ruling(q[2], ARGV[2], last_at, at, QUOTA)
if not rules or not quota then
  return redis.error_reply('SLUICE arguments are no settings')
end
local state, epoch, till, _, _, _, closed = breaker_state(b[2], now)
local kind, span, buckets = match(rules, '^%d+ (%d+) (%d+) (%d+)')
local _, calls, failures, slow, stalls
if kind == '0' then
  _, calls, failures, slow, stalls = time_window(b[4] or '', span + 0, buckets + 0, now)
else
  _, calls, failures, slow, stalls = count_window(b[4] or '', span + 0)
end
local _, out = permits_out(b[5], now)
local ramp = match(rules, '(%d+) %d+$')

local tpm, burst, rpm, reserved, _, _, _, _, recovery, delay = match(quota, QUOTA)
tpm, rpm, recovery, delay = tonumber(tpm), tonumber(rpm), recovery + 0, delay + 0
local rest = max(0, 100 - reserved)
left = refilled(at, left, requests, last_at, lag, rate, throttled, tpm, burst + 0, rpm, rest, recovery, delay)
return {
  state, epoch, state == 2 and max(0, till - now) or 0, calls, failures, slow, stalls, state == 1 and out or 0,
  tpm and floor(left / UNIT) or NONE, max(0, paused - at), floor(rate_at(rate, throttled, recovery, delay, at) / 10000),
  (state == 0 and closed > 0 and now < closed + ramp) and 1 or 0, state > 0 and b[6] or '',
}
