// Top-k of long rows. Each work-group finds the candidates of a tile of a row. Rounds repeat until one tile is left.
//
// A tile is sorted in runs of at least k keys, every other run in ascending order. Two neighbouring runs are compared
// key by key, and the smaller key of each pair is dropped. The remaining keys are the largest of both runs, and one
// bitonic merge sorts them. This halves the number of runs until one is left (Shanbhag, Pirk and Madden, "Efficient
// Top-K Query Processing on Massively Parallel Hardware", 2018).
#include "elements.cl"
#include "top_k_key.cl"

#define TILE_KEYS 2048  // kTopKTile in top_k_key.h

// Puts the keys at `low` and `high` into descending order, or ascending.
void put_in_order(local ulong *keys, uint low, uint high, bool descending) {
  const ulong a = keys[low], b = keys[high];
  if ((a < b) == descending) {
    keys[low] = b;
    keys[high] = a;
  }
}

// One round. Reads `numbers`, or [rows, count] `keys` if there are any. Writes [rows, tiles, k] keys to `to`; in the
// last round, without `to`, ids and values. `run`: a power of two, at least k. `span`: another one, at least `run`,
// which no tile exceeds.
kernel void top_k_of_tiles(global const uint *numbers, const long stride, global const ulong *keys, const long count,
                            const long k, const long rows, const uint run, const uint span, global ulong *to,
                            global int *ids, global uint *values) {
  local ulong best[TILE_KEYS];
  const uint item = get_local_id(0), items = get_local_size(0);
  const long tiles = (count + TILE_KEYS - 1) / TILE_KEYS;
  for (long b = get_group_id(0); b < rows * tiles; b += get_num_groups(0)) {
    const long row = b / tiles, first = b % tiles * TILE_KEYS;
    for (uint i = item; i < span; i += items) {
      const long at = first + i;
      ulong key = 0;  // below every other key
      if (at < count) key = keys ? keys[row * count + at] : top_k_key(numbers[row * stride + at], (uint)at);
      best[i] = key;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint size = 2; size <= run; size *= 2) {
      for (uint step = size / 2; step > 0; step /= 2) {
        for (uint i = item; i < span / 2; i += items) {
          const uint low = 2 * i - (i & (step - 1));
          put_in_order(best, low, low + step, (low & size) == 0);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
    }
    // The remaining runs start `apart` keys apart.
    for (uint apart = run; apart < span; apart *= 2) {
      const uint pairs = span / apart / 2;
      for (uint i = item; i < pairs * run; i += items) {
        const uint low = i / run * apart * 2 + i % run;
        best[low] = max(best[low], best[low + apart]);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (uint step = run / 2; step > 0; step /= 2) {
        for (uint i = item; i < pairs * run / 2; i += items) {
          const uint pair = 2 * i / run, j = i % (run / 2), low = pair * apart * 2 + 2 * j - (j & (step - 1));
          put_in_order(best, low, low + step, pair % 2 == 0);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
    }
    for (uint rank = item; rank < k; rank += items) {
      const ulong key = best[rank];
      const uint bits = (uint)(key >> 32);
      if (to) {
        to[b * k + rank] = key;
      } else {
        ids[row * k + rank] = (int)~(uint)key;
        values[row * k + rank] = bits >> 31 ? bits & 0x7fffffffu : ~bits;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);  // wait until the keys are read, because the next tile overwrites them
  }
}
