-- How long an idle target is kept: twice what its breaker remembers, and TTL at least.
local function lifetime(rules)
  local kind, span, _, _, _, _, _, _, _, _, _, cool, _, _, ramp = rules:match(BREAKER)
  return TTL + 2 * ((kind == '0' and span or 0) + cool + ramp)
end
