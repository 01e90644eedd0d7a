// The schedule: how a grouped matrix is split over threads.
//
//   by columns  Each thread takes the same share of every expert's panels. The work is even for any
//               routing, and each weight is read once. One thread at a time has the columns of a
//               pair of panels, so it can accumulate a token's rows itself. With many rows a
//               thread that is done takes over pairs of slower threads.
//   by rows     Each thread takes an expert, or a block of its rows that fits in the thread's
//               cache, and all panels. One thread reads a row and writes the whole result row.
//               A slow thread takes fewer items.
//
// A row gets the same bits from both.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>

#include "kernels/cpu/gemm/epilogue.h"
#include "kernels/cpu/gemm/expert_rows.h"
#include "kernels/cpu/gemm/macro_kernel.h"
#include "kernels/cpu/gemm/pair_claims.h"
#include "kernels/kernel_watch.h"

namespace moracle::cpu {

/// Pairs of panels that one kernel call multiplies.
struct PanelPairs {
  int64_t panels = 0;
  int64_t distance = 0;  ///< from a gate's panel to its up's panel; 0: adjacent panels are pairs

  int64_t count() const { return distance > 0 ? distance : (panels + 1) / 2; }
  PanelPair at(int64_t expert, int64_t i) const {
    if (distance > 0) return {expert, i, distance};
    return {expert, 2 * i, 2 * i + 1 < panels ? 1 : 0};
  }
};

/// The next work item of one thread: `rows`, packed at row `at` of `x`, times pairs [pair,
/// past_pair).
struct Task {
  RowItem rows;
  const PackedRows& x;
  int64_t at;
  int64_t pair, past_pair;
  std::optional<PanelPair> next;  ///< the pair that follows this step, to prefetch
  const Destination& to;
  PairClaims* claims = nullptr;  ///< multiply only pairs that this thread can claim; null: all
  int64_t next_expert = 0;       ///< claims are released for this one
};

/// Rows per row tile, so that row tiles are even: whole blocks, no short row tile at the end.
inline int64_t even_tile(int64_t rows) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t even = (rows + tiles - 1) / tiles;
  return (even + kMaxBlockRows - 1) / kMaxBlockRows * kMaxBlockRows;
}

/// A row tile whose sums are ready, and whose rows before `first` are finished.
struct UnfinishedTile {
  PanelPair pair;
  StoreArgs results[2];
  int64_t tile_row = 0;
  int count = 0;
  bool two_lines = false;  ///< of the destination per row
  int first = 0;

  /// Finishes the rows before row `past`, at most kStoreRows at a time.
  template <class Finish>
  void finish_to(int past, const Destination& to, const Finish& finish) {
    const auto prefetch = [&](int r) {
      to.prefetch(tile_row + r, tile_row + std::min(r + kStoreRows, count), pair.panel * kPanelRows,
                  two_lines);
    };
    if (first == 0) prefetch(0);
    FinishedRows some{pair, tile_row, {results[0], results[1]}};
    for (past = std::min(past, count); first < past; first += some.count) {
      prefetch(first + kStoreRows);
      some.first = first;
      some.count = std::min(kStoreRows, past - first);
      finish(some);
    }
  }
};

class Schedule {
 public:
  /// All arguments must outlive the object.
  Schedule(const MacroKernel& tile, const std::optional<MacroKernel>& skinny,
           const UkernelSet& kernels, const RowForm& form, const ExpertRows& rows,
           const PanelPairs& pairs, const Destination& to)
      : main_(tile),
        skinny_(skinny),
        kernels_(kernels),
        form_(form),
        rows_(rows),
        pairs_(pairs),
        to_(to) {}

  /// Calls finish(some) for finished rows, which writes them to their destination. `scratch` holds
  /// batch_rows packed rows, `claims` all pairs.
  template <class Finish>
  void by_columns(const RowPacker& packer, std::byte* scratch, ThreadPool& pool, PairClaims& claims,
                  const Finish& finish);
  /// Calls finish_at(to)(some) for finished rows, and done(item, to) when an item's rows are
  /// complete. `scratch` holds item_bytes per thread. Unless it `keeps_rows`, only done() reads
  /// them: later items may overwrite them.
  template <class FinishAt, class Done>
  void by_rows(const RowPacker& packer, std::byte* scratch, ThreadPool& pool,
               const FinishAt& finish_at, bool keeps_rows, const Done& done);
  /// True if by_rows costs less and has enough items for all threads. by_rows reads an expert's
  /// weights once per item; by_columns makes every thread read every row.
  bool rows_are_better(int64_t expert_bytes, const ThreadPool& pool) const {
    if (pool.affinity().num_nodes > 1) return false;  // weights lie near their columns' threads
    const RowItems items(rows_, item_rows(form_));
    int64_t experts = 0, all = 0;
    for (int64_t e = rows_.with_rows(0); e < rows_.num_experts(); e = rows_.with_rows(e + 1)) {
      ++experts;
      all += items.of(e);
    }
    return all >= 3 * pool.size() && (all - experts) * expert_bytes <=
                                         rows_.count() * packed_stride(form_) * (pool.size() - 1);
  }

  /// True if an expert with so many rows takes AMX 2 µs or more per pair of panels: a claim takes
  /// up to 0.1 µs.
  bool claims_pay(int64_t rows) const {
    constexpr int64_t kValues = 1 << 15;
    return rows * form_.k >= kValues;
  }

  /// Rows packed at a time where all threads read them: 32 MiB stay in the last-level cache.
  static int64_t batch_rows(const RowForm& form) {
    constexpr int64_t kBytes = int64_t{32} << 20;
    return std::max<int64_t>(kBytes / packed_stride(form), 1024);
  }
  /// Rows of an item, which one row tile takes: they stay in a thread's second-level cache beside
  /// weights and results.
  static int64_t item_rows(const RowForm& form) {
    constexpr int64_t kBytes = 5 << 18;
    return std::clamp<int64_t>(kBytes / packed_stride(form) / 16 * 16, 32, kTileRows);
  }
  static int64_t item_bytes(const RowForm& form) {
    const auto bytes = static_cast<int64_t>(packed_bytes(form, item_rows(form)));
    return (bytes + kRowBlockBytes - 1) / kRowBlockBytes * kRowBlockBytes;
  }

 private:
  /// False if other threads have all pairs of the task.
  template <class Finish>
  bool run(const Task& task, TileScratch& scratch, const Finish& finish);
  bool skinny(int64_t expert) const {
    return skinny_ && rows_.all_rows(expert) <= form_.skinny_rows;
  }

  const MacroKernel& main_;
  const std::optional<MacroKernel>& skinny_;
  const UkernelSet& kernels_;
  const RowForm& form_;
  const ExpertRows& rows_;
  const PanelPairs& pairs_;
  const Destination& to_;
};

// Where products leave time, a tile's rows are finished between the products of the next tile.
template <class Finish>
bool Schedule::run(const Task& task, TileScratch& scratch, const Finish& finish) {
  const int64_t e = task.rows.expert, rows = task.rows.past - task.rows.first;
  const MacroKernel& kernel = skinny(e) ? *skinny_ : main_;
  if (kernels_are_watched()) report({name(kernel.planned()), kernel.shape(), rows_.all_rows(e)});
  const int64_t tile_rows = even_tile(rows);
  const bool works_between = kernel.does_work_between() && rows > kStoreRows;
  UnfinishedTile before;
  int turn = 0;
  const auto finish_part = [&](int part, int parts) {
    before.finish_to(static_cast<int>(int64_t{before.count} * (part + 1) / parts), task.to, finish);
  };
  const auto finish_alone = [&] {
    while (before.first < before.count) {
      before.finish_to(before.first + kStoreRows, task.to, finish);
      if (kernels_.keep_awake != nullptr) kernels_.keep_awake();
    }
  };
  bool any = false;
  int64_t claimed = -1;  // all tiles of this pair are multiplied
  const auto release = [&] {
    if (claimed >= 0) task.claims->release(claimed, task.next_expert);
    claimed = -1;
  };
  for (int64_t i = task.pair; i < task.past_pair; ++i) {
    if (task.claims != nullptr && !task.claims->claim(i, e)) continue;
    any = true;
    const PanelPair pair = pairs_.at(e, i);
    const std::optional<PanelPair> next = i + 1 < task.past_pair ? pairs_.at(e, i + 1) : task.next;
    const bool two_lines = pairs_.distance == 0 && pair.distance > 0;
    for (int64_t row = 0; row < rows; row += tile_rows) {
      const int count = static_cast<int>(std::min(tile_rows, rows - row));
      RowTile tile{task.x, task.at + row, count, {}, row == 0 && next && next->distance > 0};
      if (tile.prefetch) tile.next = *next;
      TileSums& sums = scratch.sums[turn];
      kernel.multiply(pair, tile, WorkBetween::of(finish_part), scratch, sums);
      release();  // the products of this tile have finished the one before
      before = {pair, {}, task.rows.first + row, count, two_lines};
      for (int p = 0; p < pair.panels(); ++p)
        before.results[p] = kernel.result(pair, p, tile, sums);
      if (works_between)
        turn ^= 1;
      else
        finish_alone();
    }
    if (task.claims != nullptr) claimed = i;
  }
  finish_alone();
  release();
  return any;
}

template <class Finish>
void Schedule::by_columns(const RowPacker& packer, std::byte* scratch, ThreadPool& pool,
                          PairClaims& claims, const Finish& finish) {
  const int64_t most = batch_rows(form_);
  for (int64_t begin = 0; begin < rows_.count();) {
    // Take whole experts, unless the first one alone is too large.
    int64_t first_expert = rows_.with_rows(0);
    while (rows_.past(first_expert) <= begin) ++first_expert;
    int64_t expert = first_expert, end = begin, experts = 0;
    for (; expert < rows_.num_experts() && rows_.past(expert) <= begin + most; ++expert) {
      experts += rows_.rows(expert) > 0;
      end = rows_.past(expert);
    }
    if (end == begin) end = std::min(begin + most, rows_.count());
    const PackedRows x = packer.scratch(end - begin, scratch);
    packer.split(x, begin, end, rows_, form_.skinny_rows, pool);
    const bool helps = claims_pay((end - begin) / std::max<int64_t>(experts, 1));
    if (helps) claims.start(first_expert);
    const auto with_rows = [&](int64_t e) {
      const int64_t found = rows_.with_rows(e);
      return found < rows_.num_experts() && rows_.first(found) < end ? found : rows_.num_experts();
    };
    pool.run([&](int thread) {
      const auto [first, last] = pool.range_of(pairs_.count(), thread);
      if (first == last && !helps) return;
      if (kernels_.begin != nullptr) kernels_.begin();
      TileScratch own;
      // False if other threads have all pairs.
      const auto multiply = [&](int64_t e, int64_t pair, int64_t past_pair) {
        const int64_t after = with_rows(e + 1);
        const RowItem rows{e, std::max(rows_.first(e), begin), std::min(rows_.past(e), end)};
        std::optional<PanelPair> next;
        if (const int64_t ahead = rows_.with_rows(e + 1); ahead < rows_.num_experts())
          next = pairs_.at(ahead, pair);
        const Task task{.rows = rows,
                        .x = x,
                        .at = rows.first - begin,
                        .pair = pair,
                        .past_pair = past_pair,
                        .next = next,
                        .to = to_,
                        .claims = helps ? &claims : nullptr,
                        .next_expert = after};
        return run(task, own, finish);
      };
      for (int64_t e = first_expert; first < last && e < rows_.num_experts(); e = with_rows(e + 1))
        multiply(e, first, last);
      while (helps) {
        auto [pair, e] = claims.furthest_behind(rows_.num_experts());
        if (pair < 0) break;
        while (e < rows_.num_experts() && multiply(e, pair, pair + 1)) e = with_rows(e + 1);
      }
      if (kernels_.end != nullptr) kernels_.end();
    });
    begin = end;
  }
}

template <class FinishAt, class Done>
void Schedule::by_rows(const RowPacker& packer, std::byte* scratch, ThreadPool& pool,
                       const FinishAt& finish_at, bool keeps_rows, const Done& done) {
  const int64_t most = item_rows(form_);
  // Rows that are not kept overwrite those of the thread's last item, which are in its cache.
  const bool overwrites = !keeps_rows && rows_.count() >= pool.size() * most;
  // The last item of each thread is smaller.
  int64_t experts = 0;
  for (int64_t e = 0; e < rows_.num_experts(); ++e) experts += rows_.rows(e) > 0;
  const int64_t tail =
      rows_.count() - pool.size() * std::min(most, rows_.count() / std::max<int64_t>(experts, 1));
  std::atomic<int64_t> taken{0};
  pool.run([&](int thread) {
    RowItems items(rows_, most, tail);
    std::optional<RowItem> item = items.at(taken.fetch_add(1));
    if (!item) return;
    if (kernels_.begin != nullptr) kernels_.begin();
    TileScratch own;
    const PackedRows x = packer.scratch(most, scratch + thread * item_bytes(form_));
    while (item) {
      packer.pack(x, 0, item->first, item->past, skinny(item->expert));
      // A guess for the prefetch: another thread may run this item first.
      std::optional<PanelPair> next;
      RowItems ahead = items;
      if (const auto likely = ahead.at(taken.load())) next = pairs_.at(likely->expert, 0);
      Destination to = to_;
      if (overwrites) to.first_row = item->first - thread * most;
      run({*item, x, 0, 0, pairs_.count(), next, to}, own, finish_at(to));
      done(*item, to);
      item = items.at(taken.fetch_add(1));
    }
    if (kernels_.end != nullptr) kernels_.end();
  });
}

}  // namespace moracle::cpu
