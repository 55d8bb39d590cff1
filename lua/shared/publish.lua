-- Tells everybody of a transition. Whether anybody hears it is no matter of this call's.
local function publish(epoch, from, to, reason, open_for, calls, failures, slow, stalls, tag, opener)
  redis.pcall(
    'PUBLISH', 'sluice:1:transitions',
    KEYS[1]:match('{(%w+)}')
      .. (' %d %d %d %d %d %d %d %d %d '):format(epoch, from, to, reason, open_for, calls, failures, slow, stalls)
      .. tag .. ' ' .. opener
  )
end
