-- The reference rate of a ramp.

-- `r`: the most admissions in one minute of the last ten.
local function busiest(text, now)
  local minute, count, older = match(text or '', '^(%d+) (%d+) (.*)$')
  if not minute then
    return 0
  end
  local first, most = floor(now / 60000) - 10, 0
  if minute + 0 >= first then
    most = count + 0
  end
  for past, admitted in gmatch(older, '(%d+):(%d+);') do
    if past + 0 >= first then
      most = max(most, admitted + 0)
    end
  end
  return most
end
