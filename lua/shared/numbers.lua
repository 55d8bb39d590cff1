-- Numbers and time.
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

-- A key's own clock: the server's, except that it never goes back. After a step back it goes on from the
-- last time written, at the normal pace, until the server has caught up: the step neither refills a bucket
-- nor lengthens a cool-down by more than one.
local function clock(last, offset, server)
  if server >= last then
    return server, 0
  end
  local now = math.max(server + offset, last)
  return now, now - server
end
