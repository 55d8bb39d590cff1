-- The breaker's fields.

-- `s`: state, epoch, open until, cool-down, successes, reference, closed at. A breaker that is not there is
-- closed, in an epoch of its own, so that no verdict of a lost one counts.
local function breaker_state(text, now)
  if not text then
    return 0, now, 0, 0, 0, 0, 0
  end
  local state, epoch, till, cool, successes, reference, closed =
    match(text, '^(%d) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  return state + 0, epoch + 0, till + 0, cool + 0, successes + 0, reference + 0, closed + 0
end

-- `k`: the breaker's own clock.
local function breaker_clock(text, server)
  if not text then
    return server, 0
  end
  local last, offset = match(text, '^(%d+) (%d+)$')
  return clock(last + 0, offset + 0, server)
end

-- `p`: the permits that are still out, how many, how soon the first one ends, and whether `nonce` holds one.
-- `without` leaves that one out of the text.
local function permits_out(text, now, nonce, without)
  local kept, out, soonest, held = '', 0, LONG, false
  for holder, deadline in gmatch(text or '', '(%w+):(%d+);') do
    if now < deadline + 0 then
      held = held or holder == nonce
      if not (without and holder == nonce) then
        out, soonest = out + 1, min(soonest, deadline - now)
        kept = kept .. holder .. ':' .. deadline .. ';'
      end
    end
  end
  return kept, out, soonest, held
end
