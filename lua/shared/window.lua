-- The sliding window of outcomes: 0 success, 1 failure, 2 slow, 3 stall.
--
-- Time windows keep totals and one count of each kind per bucket. Most calls are successes that meet the newest
-- bucket: what those change stands in front, and they never look at the rest. Count windows keep the last N
-- outcomes themselves, one digit each in a ring, with totals: exact, and one step per outcome.

-- Puts `kind` (nil: nothing) into a time window; returns its new text, calls, failures, slow, stalls, and
-- the failures in a row.
local function time_window(text, span, buckets, now, kind)
  local bucket = math.floor(now / math.floor(span / buckets))
  local at, calls, c, row, failures, slow, stalls, from =
    text:match('^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ()')
  if kind == 0 and row == '0' and bucket <= at + 0 then
    calls = calls + 1
    text = ('%s %d %d 0 %s %s %s %s'):format(at, calls, c + 1, failures, slow, stalls, text:sub(from))
    return text, calls, failures + 0, slow + 0, stalls + 0, 0
  end
  local f, s, t, older
  if at then
    f, s, t, from = text:match('^(%d+) (%d+) (%d+) ()', from)
    older = text:sub(from)
  else
    at, row, calls, failures, slow, stalls, c, f, s, t, older = bucket, 0, 0, 0, 0, 0, 0, 0, 0, 0, ''
  end
  at, row, calls, failures, slow, stalls = at + 0, row + 0, calls + 0, failures + 0, slow + 0, stalls + 0
  if bucket > at then
    if c + 0 > 0 then
      older = ('%d:%d,%d,%d,%d;'):format(at, c, f, s, t) .. older
    end
    at, c, f, s, t = bucket, 0, 0, 0, 0
    calls, failures, slow, stalls = 0, 0, 0, 0
    for from_here, b, bc, bf, bs, bt in older:gmatch('()(%d+):(%d+),(%d+),(%d+),(%d+);') do
      if b + buckets <= bucket then
        older = older:sub(1, from_here - 1)
        break
      end
      calls, failures, slow, stalls = calls + bc, failures + bf, slow + bs, stalls + bt
    end
  end
  if kind then
    calls, c, row = calls + 1, c + 1, row + 1
    if kind == 0 then
      row = 0
    elseif kind == 1 then
      failures, f = failures + 1, f + 1
    elseif kind == 2 then
      slow, s, row = slow + 1, s + 1, 0
    else
      stalls, t = stalls + 1, t + 1
    end
    text = ('%d %d %d %d %d %d %d %d %d %d '):format(at, calls, c, row, failures, slow, stalls, f, s, t) .. older
  end
  return text, calls, failures, slow, stalls, row
end

-- The same of the last `size` outcomes; its seventh result is the number of outcomes since it was cleared.
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
