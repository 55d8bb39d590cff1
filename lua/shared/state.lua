-- A target's state, `k`: the target's own clock, which is its last use, the admissions in that minute, the breaker's
-- epoch, and the quota's tokens, requests, and refill clock's lag (as text) at that time. That is all of it while
-- the breaker has never been open, nothing is paused, the refill is whole, and the server's clock has not stepped back.
-- Else ten numbers follow; `state_text` names them.
--
-- A target that is not there is closed, in an epoch of its own, so that no verdict of a lost one counts, and its
-- buckets begin full (tokens: nil).
local function state_of(text, server)
  if not text then
    return server, server, 0, server, nil, 0, '0', 0, 0, 0, 0, 0, 0, 0, 0, 1000000, 0
  end
  local last, count, epoch, tokens, requests, lag, more = text:match('^(%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+)(.*)$')
  last, count, epoch, tokens, requests = last + 0, count + 0, epoch + 0, tokens + 0, requests + 0
  if more == '' and server >= last then
    return server, last, count, epoch, tokens, requests, lag, 0, 0, 0, 0, 0, 0, 0, 0, 1000000, 0
  end
  if more == '' then
    more = ' 0 0 0 0 0 0 0 0 1000000 0'
  end
  local offset, state, till, cool, successes, reference, closed, paused, rate, throttled =
    more:match('^ (%d+) (%d) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  -- The clock never goes back. After a step back of the server's it goes on from the last time written, at the
  -- normal pace, until the server has caught up: the step neither refills a bucket nor lengthens a cool-down by
  -- more than one.
  local now = server
  if server < last then
    now = math.max(server + offset, last)
  end
  return now, last, count, epoch, tokens, requests, lag, now - server, state + 0, till + 0, cool + 0, successes + 0,
    reference + 0, closed + 0, paused + 0, rate + 0, throttled + 0
end

local function state_text(
  now, count, epoch, tokens, requests, lag, offset, state, till, cool, successes, reference, closed, paused, rate, throttled
)
  local text = ('%d %d %d %d %d %s'):format(now, count, epoch, tokens, requests, lag)
  if offset + state + till + cool + successes + reference + closed > 0 or now < paused or rate < 1000000 then
    text = ('%s %d %d %d %d %d %d %d %d %d %d'):format(
      text, offset, state, till, cool, successes, reference, closed, paused, rate, throttled
    )
  end
  return text
end
