// Sums over a work-group of f32 numbers.
#define MOST_SUMMED 256  // work-items

// The sum of `value` over the work-items of the group, the same in each. `sums` holds MOST_SUMMED numbers. The number
// of work-items is a power of two.
float sum_group(local float *sums, float value) {
  const int lid = get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);  // the previous sum has been read
  sums[lid] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = get_local_size(0) / 2; step > 0; step /= 2) {
    if (lid < step) sums[lid] += sums[lid + step];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return sums[0];
}
