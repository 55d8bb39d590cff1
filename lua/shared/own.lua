-- A tenant's own bucket, refilled.
local function own_share(stored, refill, tpm, burst, share)
  local full = burst * share * 60000
  if not stored then
    return full
  end
  local tokens, at = stored:match('^(%d+) (%d+)$')
  return math.min(full, tokens + math.floor(math.max(0, refill - at) * tpm * share / 1000))
end
