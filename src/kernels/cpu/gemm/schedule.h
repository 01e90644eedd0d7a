// Two ways to split a grouped matrix over threads:
//
//   by columns  Each thread takes the same share of every expert's panels. The work is even for any
//               routing, and each weight is read once. Each thread owns its columns of the result,
//               so it can accumulate a token's rows itself.
//   by rows     Each thread takes an expert, or a block of its rows that fits in the thread's
//               cache, and all panels. One thread reads a row and writes the whole result row.
//               A slow thread takes fewer items.
//
// A row gets the same bits either way.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>

#include "kernels/cpu/gemm/expert_rows.h"
#include "kernels/cpu/gemm/macro_kernel.h"
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

/// Where the result rows go: row r at data + (row ? row[r] : r) · stride.
struct Destination {
  float* data;
  int64_t stride;
  const int32_t* row = nullptr;

  float* at(int64_t r) const { return data + (row == nullptr ? r : row[r]) * stride; }
  /// Prefetches one or two cache lines of each of the rows [first, end) at `column`. The rows lie
  /// far apart, and a store miss waits as long as a load miss.
  void ask(int64_t first, int64_t end, int64_t column, bool two_lines) const {
    for (int64_t r = first; r < end; ++r) {
      const auto* const line = reinterpret_cast<const char*>(at(r) + column);
      __builtin_prefetch(line);
      if (two_lines) __builtin_prefetch(line + kLineBytes);
    }
  }
};

/// A pass whose sums are ready, and `count` of its rows from `first` on.
struct Finished {
  const PanelPair& pair;
  int64_t pass_row;      // the pass's first row, counted from the run's first row
  StoreArgs results[2];  // for the whole pass
  int first = 0, count = 0;

  /// The result of panel p for these rows, without a destination.
  StoreArgs result(int p) const {
    StoreArgs f = results[p];
    f.sum += first * kLineRows;
    if (f.x_scale != nullptr) f.x_scale += first * f.x_scale_stride;
    f.rows = count;
    return f;
  }
  int64_t row() const { return pass_row + first; }
  int64_t column(int p) const { return (pair.panel + p * pair.distance) * kLineRows; }
};

/// The next work of one thread: `rows`, packed at row `at` of `x`, times pairs [pair, past_pair).
struct WalkStep {
  RowItem rows;
  const PackedRows& x;
  int64_t at;
  int64_t pair, past_pair;
  std::optional<PanelPair> next;  ///< the pair that follows this step, to prefetch
};

/// Rows per pass, so that passes are even: whole blocks, no short pass at the end.
inline int64_t even_pass(int64_t rows) {
  const int64_t passes = (rows + kPassRows - 1) / kPassRows;
  const int64_t even = (rows + passes - 1) / passes;
  return (even + kMaxBlockRows - 1) / kMaxBlockRows * kMaxBlockRows;
}

class LineWalk {
 public:
  /// All arguments must outlive the object.
  LineWalk(const LinePass& pass, const std::optional<LinePass>& few, const LineKernels& kernels,
           const RowForm& form, const ExpertRows& rows, const PanelPairs& pairs,
           const Destination& to)
      : pass_(pass),
        few_(few),
        kernels_(kernels),
        form_(form),
        rows_(rows),
        pairs_(pairs),
        to_(to) {}

  /// Calls finish(some) for finished rows, which writes them to their destination. `scratch` holds
  /// batch_rows packed rows.
  template <class Finish>
  void by_columns(const RowPacker& packer, std::byte* scratch, ThreadPool& pool,
                  const Finish& finish);
  /// Also calls done(item) when an item's rows are complete. `scratch` holds item_bytes per thread.
  template <class Finish, class Done>
  void by_rows(const RowPacker& packer, std::byte* scratch, ThreadPool& pool, const Finish& finish,
               const Done& done);
  /// True if by_rows costs less and has enough items for all threads. by_rows reads an expert's
  /// weights once per item; by_columns makes every thread read every row.
  bool rows_are_better(int64_t expert_bytes, const ThreadPool& pool) const {
    if (pool.places().num_nodes > 1) return false;  // weights lie near their columns' threads
    const RowItems items(rows_, item_rows(form_));
    int64_t experts = 0, all = 0;
    for (int64_t e = rows_.with_rows(0); e < rows_.num_experts(); e = rows_.with_rows(e + 1)) {
      ++experts;
      all += items.of(e);
    }
    return all >= 3 * pool.size() && (all - experts) * expert_bytes <=
                                         rows_.count() * packed_stride(form_) * (pool.size() - 1);
  }

  /// Rows packed at a time where all threads read them: 32 MiB stay in the last-level cache.
  static int64_t batch_rows(const RowForm& form) {
    constexpr int64_t kBytes = int64_t{32} << 20;
    return std::max<int64_t>(kBytes / packed_stride(form), 1024);
  }
  /// Rows of an item, which one pass takes: they stay in a thread's second-level cache beside
  /// weights and results.
  static int64_t item_rows(const RowForm& form) {
    constexpr int64_t kBytes = 5 << 18;
    return std::clamp<int64_t>(kBytes / packed_stride(form) / 16 * 16, 32, kPassRows);
  }
  static int64_t item_bytes(const RowForm& form) {
    const auto bytes = static_cast<int64_t>(packed_bytes(form, item_rows(form)));
    return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  }

 private:
  template <class Finish>
  void step(const WalkStep& step, PassScratch& scratch, const Finish& finish);
  bool few(int64_t expert) const { return few_ && rows_.all_rows(expert) <= form_.few_rows; }

  const LinePass& pass_;
  const std::optional<LinePass>& few_;
  const LineKernels& kernels_;
  const RowForm& form_;
  const ExpertRows& rows_;
  const PanelPairs& pairs_;
  const Destination& to_;
};

template <class Finish>
void LineWalk::step(const WalkStep& step, PassScratch& scratch, const Finish& finish) {
  const int64_t e = step.rows.expert, rows = step.rows.past - step.rows.first;
  const LinePass& way = few(e) ? *few_ : pass_;
  if (kernels_are_watched()) report({way.name(step.x.rest > 0), way.shape(), rows_.all_rows(e)});
  const int64_t pass_rows = even_pass(rows);
  for (int64_t i = step.pair; i < step.past_pair; ++i) {
    const PanelPair pair = pairs_.at(e, i);
    const std::optional<PanelPair> next = i + 1 < step.past_pair ? pairs_.at(e, i + 1) : step.next;
    const bool two_lines = pairs_.distance == 0 && pair.distance > 0;
    for (int64_t row = 0; row < rows; row += pass_rows) {
      const int count = static_cast<int>(std::min(pass_rows, rows - row));
      Pass pass{step.x, step.at + row, count, {}, row == 0 && next && next->distance > 0};
      if (pass.prefetch) pass.next = *next;
      Finished some{pair, step.rows.first + row, {}};
      auto ask_from = [&](int r) {
        to_.ask(some.pass_row + r, some.pass_row + std::min(r + kResultRows, count),
                pair.panel * kLineRows, two_lines);
      };
      ask_from(0);
      way.multiply(pair, pass, scratch);
      for (int p = 0; p < pair.panels(); ++p) some.results[p] = way.result(pair, p, pass, scratch);
      for (int r = 0; r < count; r += kResultRows) {
        ask_from(r + kResultRows);
        some.first = r;
        some.count = std::min(kResultRows, count - r);
        finish(some);
        if (kernels_.keep_awake != nullptr) kernels_.keep_awake();
      }
    }
  }
}

template <class Finish>
void LineWalk::by_columns(const RowPacker& packer, std::byte* scratch, ThreadPool& pool,
                          const Finish& finish) {
  const int64_t most = batch_rows(form_);
  for (int64_t begin = 0; begin < rows_.count();) {
    // Take whole experts, unless the first one alone is too large.
    int64_t first_expert = rows_.with_rows(0);
    while (rows_.past(first_expert) <= begin) ++first_expert;
    int64_t expert = first_expert, end = begin;
    for (; expert < rows_.num_experts() && rows_.past(expert) <= begin + most; ++expert)
      end = rows_.past(expert);
    if (end == begin) end = std::min(begin + most, rows_.count());
    const PackedRows x = packer.scratch(end - begin, scratch);
    packer.split(x, begin, end, rows_, form_.few_rows, pool);
    auto item = [&](int64_t e) {
      return RowItem{e, std::max(rows_.first(e), begin), std::min(rows_.past(e), end)};
    };
    pool.run([&](int thread) {
      const auto [first, last] = pool.piece(pairs_.count(), thread);
      if (first == last) return;
      if (kernels_.begin != nullptr) kernels_.begin();
      PassScratch own;
      for (int64_t e = first_expert; e < rows_.num_experts() && rows_.first(e) < end;) {
        const int64_t after = rows_.with_rows(e + 1);
        const RowItem rows = item(e);
        std::optional<PanelPair> next;
        if (after < rows_.num_experts()) next = pairs_.at(after, first);
        step({rows, x, rows.first - begin, first, last, next}, own, finish);
        e = after;
      }
      if (kernels_.end != nullptr) kernels_.end();
    });
    begin = end;
  }
}

template <class Finish, class Done>
void LineWalk::by_rows(const RowPacker& packer, std::byte* scratch, ThreadPool& pool,
                       const Finish& finish, const Done& done) {
  const int64_t most = item_rows(form_);
  std::atomic<int64_t> taken{0};
  pool.run([&](int thread) {
    RowItems items(rows_, most);
    std::optional<RowItem> item = items.at(taken.fetch_add(1));
    if (!item) return;
    if (kernels_.begin != nullptr) kernels_.begin();
    PassScratch own;
    const PackedRows x = packer.scratch(most, scratch + thread * item_bytes(form_));
    while (item) {
      packer.pack(x, 0, item->first, item->past, few(item->expert));
      // A guess for the prefetch: another thread may take this item first.
      std::optional<PanelPair> next;
      RowItems ahead = items;
      if (const auto likely = ahead.at(taken.load())) next = pairs_.at(likely->expert, 0);
      step({*item, x, 0, 0, pairs_.count(), next}, own, finish);
      done(*item);
      item = items.at(taken.fetch_add(1));
    }
    if (kernels_.end != nullptr) kernels_.end();
  });
}

}  // namespace moracle::cpu
