// Assigns rows to experts. A work-group counts the slots of a block of experts, together with those of all experts
// before them, and then numbers its own. Work-groups exchange no data, so one kernel suffices, without a workspace.
// Rows come out in the order of tokens.
#include "elements.cl"
#include "scan.cl"

#define MOST_ITEMS 256
// Counters of a work-group: one for each of its experts and work-items. As many as kCounters in ops_rows.cc.
#define COUNTERS 2048

// The local number of a slot's expert, or -1 if the slot has no local expert. Looks the id up only if it is valid.
long local_expert_of(global const int *ids, long slot, long num_experts, global const int *expert_map, long num_local) {
  const int id = ids[slot];
  if (id < 0 || id >= num_experts) return -1;
  const int expert = expert_map ? expert_map[id] : id;
  return expert >= 0 && expert < num_local ? expert : -1;
}

kernel void plan_rows(global const int *ids, const long slots, const long top_k, const long num_experts,
                      global const int *expert_map, const long num_local, global int *expert_offsets,
                      global int *row_token, global int *slot_row, global int *row_slot,
                      volatile global ErrorCell *errors) {
  local uint counters[COUNTERS];  // [expert of the block, work-item]
  local uint scratch[MOST_ITEMS];
  const long item = get_local_id(0), items = get_local_size(0), per_block = COUNTERS / items;
  // Each work-item has a run of slots, so that the order of work-items is the order of slots.
  const long each = (slots + items - 1) / items, first = min(item * each, slots), last = min(first + each, slots);
  // A rank without experts has one block, too: block 0 marks the slots without a row.
  const long blocks = max((num_local + per_block - 1) / per_block, 1L);
  for (long block = get_group_id(0); block < blocks; block += get_num_groups(0)) {
    const long lowest = block * per_block;
    uint before = 0, all_before, own;
    for (long x = 0; x < per_block; ++x) counters[x * items + item] = 0;
    for (long slot = first; slot < last; ++slot) {
      const long expert = local_expert_of(ids, slot, num_experts, expert_map, num_local);
      if (expert >= 0 && expert < lowest) ++before;
      if (expert >= lowest && expert < lowest + per_block) ++counters[(expert - lowest) * items + item];
    }
    scan_before(scratch, before, &all_before);  // its barriers also complete the counters
    // From counts to rows: each counter becomes the row of its first slot.
    uint sum = 0;
    for (long i = item * per_block; i < (item + 1) * per_block; ++i) sum += counters[i];
    uint row = all_before + scan_before(scratch, sum, &own);
    for (long i = item * per_block; i < (item + 1) * per_block; ++i) {
      const uint count = counters[i];
      counters[i] = row;
      row += count;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (long x = item; x < min(per_block, num_local - lowest); x += items)
      expert_offsets[lowest + x] = (int)counters[x * items];
    if (item == 0 && block == blocks - 1) expert_offsets[num_local] = (int)(all_before + own);
    barrier(CLK_LOCAL_MEM_FENCE);  // wait until the offsets are read
    for (long slot = first; slot < last; ++slot) {
      const long expert = local_expert_of(ids, slot, num_experts, expert_map, num_local);
      if (expert >= lowest && expert < lowest + per_block) {
        const uint at = counters[(expert - lowest) * items + item]++;
        row_token[at] = (int)(slot / top_k);
        row_slot[at] = (int)slot;
        slot_row[slot] = (int)at;
      } else if (expert < 0 && block == 0) {
        slot_row[slot] = -1;
        if (ids[slot] < -1 || ids[slot] >= num_experts) report(errors, slot, ids[slot], num_experts, top_k);
      }
    }
  }
}

int clamp_count(int count, long max_tokens) { return (int)min(max((long)count, 0L), max_tokens); }

// One work-group per expert.
kernel void plan_batched_rows(global const int *counts, const long num_experts, const long max_tokens,
                              global int *expert_offsets, global int *row_token, global int *slot_row,
                              global int *row_slot, volatile global ErrorCell *errors) {
  local uint scratch[MOST_ITEMS];
  const long item = get_local_id(0), items = get_local_size(0);
  for (long e = get_group_id(0); e < num_experts; e += get_num_groups(0)) {
    uint before = 0;
    for (long other = item; other < e; other += items) before += (uint)clamp_count(counts[other], max_tokens);
    const int row = (int)group_sum(scratch, before), count = clamp_count(counts[e], max_tokens);
    if (item == 0) {
      expert_offsets[e] = row;
      if (e == num_experts - 1) expert_offsets[num_experts] = row + count;
      if (count != counts[e]) report(errors, e, counts[e], max_tokens, 1);
    }
    for (long i = item; i < max_tokens; i += items) {
      const int slot = (int)(e * max_tokens + i), at = row + (int)i;
      slot_row[slot] = i < count ? at : -1;
      if (i < count) {
        row_slot[at] = slot;
        row_token[at] = slot;
      }
    }
  }
}
