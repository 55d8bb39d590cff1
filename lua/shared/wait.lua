-- How long `missing` units take at `speed` units per millisecond.
local function wait_for(missing, speed)
  if missing <= 0 then
    return 0
  end
  if speed <= 0 then
    return LONG
  end
  return math.min(LONG, math.ceil(missing / speed))
end
