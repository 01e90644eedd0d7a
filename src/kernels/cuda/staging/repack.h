// Experts packed for a CPU, packed again on the GPU.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/weights/expert_transfers.h"

namespace moracle::cuda {

/// True if the GPU packs this matrix again; else host threads do.
bool repacks_here(const ExpertMatrix& matrix);
/// Enqueues it on `stream`, for at most kTransferExperts experts of one layer. `arrived`: their
/// packed bytes one after another, in this GPU's memory. Requires repacks_here.
Status repack_here(const Queue& queue, std::span<const ExpertMatrix> experts,
                   const std::byte* arrived, Stream stream);

}  // namespace moracle::cuda
