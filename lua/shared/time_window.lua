-- A window of time: totals, and one count of each kind per bucket. Puts `kind` (0 success, 1 failure, 2 slow,
-- 3 stall; nil: nothing) into it; returns its new text, calls, failures, slow, stalls, and the failures in a row.
local function time_window(text, span, buckets, now, kind)
  local bucket = math.floor(now / math.floor(span / buckets))
  local at, calls, c, row, failures, slow, stalls, f, s, t, from =
    text:match('^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ()')
  local older = ''
  if at then
    older = text:sub(from)
  else
    at, row, calls, failures, slow, stalls, c, f, s, t = bucket, 0, 0, 0, 0, 0, 0, 0, 0, 0
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
