-- A window of the last `size` outcomes themselves, one digit each in a ring, with totals: exact, and one step per
-- outcome. Kinds and results are those of a window of time; the seventh result is the number of outcomes since it
-- was cleared.
local function count_window(text, size, kind)
  local seen, row, failures, slow, stalls, ring = text:match('^(%d+) (%d+) (%d+) (%d+) (%d+) ()')
  if not seen then
    seen, row, failures, slow, stalls, ring = 0, 0, 0, 0, 0, 1
  end
  seen, row, failures, slow, stalls, ring = seen + 0, row + 0, failures + 0, slow + 0, stalls + 0, text:sub(ring)
  if kind then
    local place = seen % size
    local gone = ring:sub(place + 1, place + 1)
    if gone == '1' then
      failures = failures - 1
    elseif gone == '2' then
      slow = slow - 1
    elseif gone == '3' then
      stalls = stalls - 1
    end
    ring = ('%s%d%s'):format(ring:sub(1, place), kind, ring:sub(place + 2))
    seen, row = seen + 1, row + 1
    if kind == 0 then
      row = 0
    elseif kind == 1 then
      failures = failures + 1
    elseif kind == 2 then
      slow, row = slow + 1, 0
    else
      stalls = stalls + 1
    end
    text = ('%d %d %d %d %d %s'):format(seen, row, failures, slow, stalls, ring)
  end
  return text, #ring, failures, slow, stalls, row, seen
end
