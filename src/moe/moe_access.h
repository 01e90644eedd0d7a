// A layer's experts for the library's own source folders: any ExpertsCall, and its forms of input.
#pragma once

#include <span>
#include <vector>

#include "kernels/fused_experts.h"
#include "kernels/weights/expert_transfers.h"
#include "moracle/moe.h"

namespace moracle {

/// The form in which GEMM 1 reads its input: dtype, columns and scales of one row. No memory. Empty
/// if the layer needs its input as the caller has it: floats, stored scales, weights on the input,
/// adapters.
Rows ready_form(const Plan& plan);

struct MoeAccess {
  /// Enqueues a call, with the bits of FusedMoe::apply where the output is the same. Errors: those
  /// of FusedMoe::apply.
  static Status run(FusedMoe& moe, ExpertsCall call, Stream stream);
  /// The form of Input::kPrepared for a call for so many tokens: ready_form, or that of kernels
  /// that fuse the layer. Empty: the call takes Input::kTokens.
  static Rows prepared_form(const FusedMoe& moe, int64_t num_tokens);
  /// Brings tokens to the form of a call for `num_tokens`. Requires a form, and rows without gaps
  /// that begin at 16 bytes.
  static Status prepare(FusedMoe& moe, const Matrix& x, int64_t num_tokens, const Rows& to,
                        Stream stream);
  /// The same layer with the experts of another map, in the workspace of `old`. Experts that `old`
  /// has are copied, where the host sees the device's memory; the others are read. Errors: as
  /// FusedMoe::make; adapters.
  static Result<FusedMoe> make_moved(DescribedWeights&& weights, const Selection& selection,
                                     const FusedMoe& old);

  // A layer whose local experts are read from files one by one.

  /// A layer with the plan of `selection`, which has fewer experts than the layer, in memory of the
  /// host. Its local experts are those that read_expert reads. Sets the keys of `weights` as
  /// planned. Errors: no plan; another layer; adapters; memory.
  static Result<FusedMoe> make_pool(DescribedWeights& weights, const Selection& selection,
                                    std::shared_ptr<Workspace> workspace);
  static Device& device_of(const FusedMoe& layer);
  /// Packs a matrix of an expert as local expert `at`, then expert_read completes both. Several
  /// threads may read different ones. Errors: reading.
  static Status read_expert(FusedMoe& pool, const DescribedWeights& weights, bool is_w13,
                            int64_t expert, int64_t at, ThreadPool& threads);
  static Status expert_read(FusedMoe& pool, const DescribedWeights& weights, int64_t expert,
                            int64_t at);
  /// Weights of all experts, of which each is read once and dropped. Errors: as FusedMoe::pack.
  static Result<PackedWeights> check_all(const FusedMoe& pool, DescribedWeights&& weights,
                                         const Progress& progress);
  /// The weights of check_all. Errors: others; consumed ones.
  static Result<DescribedWeights> take_described(const FusedMoe& pool, PackedWeights&& weights);

  // A layer whose local experts are slots: experts of another layer replace one another there.

  /// A layer with the plan of `selection`, for copies of experts of `all`. Its local experts are
  /// slots without an expert. Errors: no plan; another layer; adapters; a layout for which experts
  /// of `all` cannot be packed again; memory.
  static Result<FusedMoe> make_slots(const FusedMoe& all, const Selection& selection,
                                     std::shared_ptr<Workspace> workspace);
  /// Bytes of one packed expert, both matrices.
  static int64_t expert_bytes(const FusedMoe& layer);
  /// A local expert of a layer and a slot.
  struct ExpertInSlot {
    int64_t local, slot;
  };
  /// What a transfer of experts of `all` into slots reads and writes: w13 of each, then w2 of each.
  static std::vector<ExpertMatrix> matrices_of(const FusedMoe& all, const FusedMoe& slots,
                                               std::span<const ExpertInSlot> experts);
  /// The same for a slot of another layer with the same plan, whose bytes are copied.
  static Status copy_slot(const FusedMoe& from, int64_t from_slot, FusedMoe& to, int64_t to_slot,
                          Stream stream);
  /// Enqueues what kernels derive from a slot's bytes, which were enqueued before, and the adapters
  /// of the local expert of `all` in it.
  static Status slot_filled(FusedMoe& slots, int64_t slot, const FusedMoe& all, int64_t local,
                            Stream stream);
  /// Enqueues the adapters alone.
  static Status copy_adapters(FusedMoe& slots, int64_t slot, const FusedMoe& all, int64_t local,
                              Stream stream);
  /// Pins the packed weights for transfers to `device`. Empty where that is not needed or refused.
  static std::vector<std::shared_ptr<void>> pin(const FusedMoe& all, Device& device);
  /// Lets the layer read its map of experts to slots from memory of the caller's, [num_experts].
  static void share_map(FusedMoe& slots, const Buffer& map);
  /// Enqueues another map of experts to slots, [num_experts]; -1: in no slot. Later calls use it.
  static Status map_slots(FusedMoe& slots, std::span<const int32_t> local, Stream stream);
};

}  // namespace moracle
