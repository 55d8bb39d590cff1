-- Numbers and time.
local call, match, gmatch, format, sub = redis.call, string.match, string.gmatch, string.format, string.sub
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

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
  local now = max(server + offset, last)
  return now, now - server
end
