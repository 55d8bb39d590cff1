-- The reference rate of a ramp.

-- Once the minute of the last use is over: its admissions and those of the ten before it, for `r`.
local function minutes_past(older, last, count, now)
  local minute = math.floor(now / 60000)
  older = count > 0 and ('%d:%d;'):format(math.floor(last / 60000), count) .. older or older
  for from, past in older:gmatch('()(%d+):%d+;') do
    if past + 10 < minute then
      return older:sub(1, from - 1)
    end
  end
  return older
end

-- The most admissions in one minute of the last ten.
local function busiest(older, last, count, now)
  local first, most = math.floor(now / 60000) - 10, 0
  if math.floor(last / 60000) >= first then
    most = count
  end
  for past, admitted in older:gmatch('(%d+):(%d+);') do
    if past + 0 >= first then
      most = math.max(most, admitted + 0)
    end
  end
  return most
end
