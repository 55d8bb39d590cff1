-- Numbers, time, and how a text is taken apart.
--
-- Every function that a script defines is made anew in each call, and every local it closes over costs again.
-- So what is rarely needed reaches the library through globals and methods (`text:match`), not through these.
local call, match, format, floor, max, min = redis.call, string.match, string.format, math.floor, math.max, math.min

-- Doubles hold every integer below this one.
local LIMIT = 9007199254740992
-- Units in a token, and in a request.
local UNIT = 6000000
-- Said when no wait helps, such as with a limit of zero.
local LONG = 3600000
-- A target's last use is written this much late, at most.
local TOUCH = 10000
-- Idle keys live this long at least.
local TTL = 3600000

-- The halves of a target's settings; see sluice-state's script/encode.rs for what each number is.
local QUOTA = '^%d+ (%d*) (%d+) (%d*) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+);'
local BREAKER = ';(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'
