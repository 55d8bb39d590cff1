-- The breaker's fields.

-- `s`: state, epoch, open until, cool-down, successes, reference, closed at. A breaker that is not there is
-- closed, in an epoch of its own, so that no verdict of a lost one counts.
local function breaker_state(text, now)
  if not text then
    return 0, now, 0, 0, 0, 0, 0
  end
  local state, epoch = 0, text:match('^0 (%d+) 0 0 0 0 0$')
  if epoch then
    -- It has never been open.
    return 0, epoch + 0, 0, 0, 0, 0, 0
  end
  local till, cool, successes, reference, closed
  state, epoch, till, cool, successes, reference, closed = text:match('^(%d) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return state + 0, epoch + 0, till + 0, cool + 0, successes + 0, reference + 0, closed + 0
end

local function breaker_text(state, epoch, till, cool, successes, reference, closed)
  return ('%d %d %d %d %d %d %d'):format(state, epoch, till, cool, successes, reference, closed)
end

-- `k`: the breaker's own clock, its last use, the admissions in that minute.
local function breaker_clock(text, server)
  if not text then
    return server, 0, server, 0
  end
  local last, count, offset = text:match('^(%d+) (%d+) ?(%d*)$')
  last, count = last + 0, count + 0
  if server >= last then
    return server, 0, last, count
  end
  local now, ahead = clock(last, offset == '' and 0 or offset + 0, server)
  return now, ahead, last, count
end

local function clock_text(now, count, offset)
  return (offset == 0 and '%d %d' or '%d %d %d'):format(now, count, offset)
end

-- `p`: the permits that are still out, how many, how soon the first one ends, and whether `nonce` holds one.
-- `without` leaves that one out of the text.
local function permits_out(text, now, nonce, without)
  local kept, out, soonest, held = '', 0, LONG, false
  for holder, deadline in (text or ''):gmatch('(%w+):(%d+);') do
    if now < deadline + 0 then
      held = held or holder == nonce
      if not (without and holder == nonce) then
        out, soonest = out + 1, math.min(soonest, deadline - now)
        kept = kept .. holder .. ':' .. deadline .. ';'
      end
    end
  end
  return kept, out, soonest, held
end
