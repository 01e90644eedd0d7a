// Prefix sums over the work-items of a group. All work-items must call, and `scratch` holds one number of each.

// The sum of `value` over the work-items before this one. `total`: over all.
uint scan_before(local uint *scratch, uint value, private uint *total) {
  const uint item = get_local_id(0), items = get_local_size(0);
  scratch[item] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint step = 1; step < items; step *= 2) {
    const uint other = item >= step ? scratch[item - step] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    scratch[item] += other;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  *total = scratch[items - 1];
  const uint before = scratch[item] - value;
  barrier(CLK_LOCAL_MEM_FENCE);  // wait until all have read, so that the next call may write
  return before;
}

uint group_sum(local uint *scratch, uint value) {
  uint total;
  scan_before(scratch, value, &total);
  return total;
}
