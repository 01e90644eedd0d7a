// Loops that reach the limits of a device: sequential reads, and f32 multiply-adds.

#define AT_ONCE 8  // vectors of 16 bytes that a work-item reads

// A work-group reads one contiguous chunk.
kernel void read_vectors(global const uint4 *from, const long count, global uint *out) {
  const long per_group = AT_ONCE * get_local_size(0);
  for (long first = get_group_id(0) * per_group; first < count; first += get_num_groups(0) * per_group) {
    uint4 sum = 0;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const long mine = first + i * get_local_size(0) + get_local_id(0);
      if (mine < count) sum ^= from[mine];
    }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x9e3779b9u) *out = sum.x;  // keeps the compiler from removing the loads
  }
}

kernel void fill_vectors(global uint4 *to, const long count) {
  for (long i = get_global_id(0); i < count; i += get_global_size(0)) {
    const uint seed = (uint)i * 2654435761u;
    to[i] = (uint4)(seed, seed ^ 0x5bd1e995u, seed * 31u, ~seed);
  }
}

// Each round: 16 products and additions of WIDTH floats, independent of one another.
kernel void multiply(const long rounds, global uint *out) {
  REAL sum[16];
  const REAL a = (REAL)(1.0f / (2 + get_local_id(0))), b = (REAL)(1.0f / (2 + get_group_id(0)));
#pragma unroll
  for (int i = 0; i < 16; ++i) sum[i] = (REAL)((float)i);
  for (long r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < 16; ++i) sum[i] = fma(sum[i], a, b);
  }
  REAL all = sum[0];
  for (int i = 1; i < 16; ++i) all += sum[i];
  if (FIRST(all) == 0x1p-100f) *out = 1;
}
