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
