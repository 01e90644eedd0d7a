#if defined(MORACLE_WITH_NCCL)
#include "parallel/cuda/nccl_exchange.h"

#include <bit>

#include "base/text.h"
#include "kernels/cuda/device/cuda_check.h"
#include "parallel/exchange_makers.h"

namespace moracle {
namespace {

ncclDataType_t nccl_type(DType type) {
  return type == DType::kF32 ? ncclFloat32 : type == DType::kF16 ? ncclFloat16 : ncclBfloat16;
}

// The first error of the calls in an NCCL group; else the last result.
void keep_error(ncclResult_t& first, ncclResult_t next) {
  if (first == ncclSuccess || first == ncclInProgress) first = next;
}

// NCCL chooses its algorithm by size.
size_t kind_of(size_t size) {
  return static_cast<size_t>(std::bit_width(size));
}

size_t count_of(const Matrix& x) {
  return static_cast<size_t>(x.rows * x.cols);
}

}  // namespace

Status check_summed(const Matrix& x) {
  const bool is_float = x.dtype == DType::kF32 || x.dtype == DType::kBF16 || x.dtype == DType::kF16;
  if (is_float && x.stride == x.cols) return {};
  return Error{ErrorKind::kInvalidArgument, "", "sum over ranks", "f32, bf16 or f16 without gaps",
               str("it is ", name(x.dtype), " with stride ", x.stride, " of ", x.cols, " columns")};
}

Status check_scattered(const Matrix& all, const Matrix& mine, int64_t ranks) {
  MORACLE_CHECK(check_summed(all));
  MORACLE_CHECK(check_summed(mine));
  if (all.rows == mine.rows * ranks && all.cols == mine.cols && all.dtype == mine.dtype) return {};
  return Error{ErrorKind::kInvalidArgument, "", "reduce-scatter",
               str(mine.rows * ranks, " rows of ", mine.cols, " columns in ", name(mine.dtype),
                   ", for ", ranks, " ranks"),
               str("there are ", all.rows, " of ", all.cols, " in ", name(all.dtype))};
}

Result<std::unique_ptr<NcclExchange>> NcclExchange::make(std::shared_ptr<Group> group,
                                                         std::shared_ptr<Device> device,
                                                         ncclComm_t communicator) {
  if (const auto& library = nccl::api(); !library) return library.error();
  // The table serves this row on devices of this platform only.
  std::unique_ptr<NcclExchange> made(
      new NcclExchange(group, std::static_pointer_cast<CudaDevice>(std::move(device))));
  MORACLE_TRY(const cuda::CurrentDevice here,
              cuda::CurrentDevice::enter(made->device_->queue().index));
  const int index = made->device_->queue().index;
  MORACLE_TRY(made->communicator_, communicator == nullptr
                                       ? nccl::Communicator::open(group)
                                       : nccl::Communicator::adopt(group, index, communicator));
  made->device_->watches().add(made->communicator_->watch());
  return made;
}

NcclExchange::~NcclExchange() {
  if (communicator_ == nullptr) return;
  // Destructor: errors are dropped; synchronize() has reported them.
  static_cast<void>(device_->synchronize({}).ok());
  const auto here = cuda::CurrentDevice::enter(device_->queue().index);
  communicator_.reset();
}

template <class Enqueue>
Status NcclExchange::enqueue(const char* name, size_t kind, Stream stream, const Enqueue& enqueue) {
  const DeviceLock lock = device_->lock();
  MORACLE_TRY(const cuda::CurrentDevice here, cuda::CurrentDevice::enter(device_->queue().index));
  cudaStream_t const on = device_->queue().of(stream);
  return communicator_->enqueue(name, kind, [&] { return enqueue(on); });
}

Status NcclExchange::all_reduce(const Matrix& x, Stream stream) {
  MORACLE_CHECK(check_summed(x));
  if (count_of(x) == 0) return {};
  return enqueue("ncclAllReduce", kind_of(count_of(x)), stream, [&](cudaStream_t on) {
    return api_.ncclAllReduce(x.data, x.data, count_of(x), nccl_type(x.dtype), ncclSum,
                              communicator_->get(), on);
  });
}

Status NcclExchange::all_gather(const void* mine, size_t bytes, void* all, Stream stream) {
  const Gathered one{mine, bytes, all};
  return all_gather({&one, 1}, stream);
}

Status NcclExchange::all_gather(std::span<const Gathered> gathered, Stream stream) {
  size_t bytes = 0;
  for (const Gathered& one : gathered) bytes += one.bytes;
  return enqueue("ncclAllGather", kind_of(bytes), stream, [&](cudaStream_t on) {
    ncclResult_t first = api_.ncclGroupStart();
    for (const Gathered& one : gathered) {
      if (one.bytes > 0)
        keep_error(first, api_.ncclAllGather(one.mine, one.all, one.bytes, ncclUint8,
                                             communicator_->get(), on));
    }
    keep_error(first, api_.ncclGroupEnd());
    return first;
  });
}

Status NcclExchange::reduce_scatter(const Matrix& all, const Matrix& mine, Stream stream) {
  MORACLE_CHECK(check_scattered(all, mine, group_->size()));
  if (count_of(mine) == 0) return {};
  return enqueue("ncclReduceScatter", kind_of(count_of(mine)), stream, [&](cudaStream_t on) {
    return api_.ncclReduceScatter(all.data, mine.data, count_of(mine), nccl_type(mine.dtype),
                                  ncclSum, communicator_->get(), on);
  });
}

Status NcclExchange::exchange(std::span<const Group::Block> send,
                              std::span<const Group::Block> receive, Stream stream) {
  const auto own = static_cast<size_t>(group_->rank());
  const auto size = static_cast<size_t>(group_->size());
  if (send.size() != size || receive.size() != size || send[own].bytes != receive[own].bytes) {
    return Error{ErrorKind::kInvalidArgument, "", "exchange",
                 str("one part for each of ", size, " ranks"),
                 str("there are ", send.size(), " to send and ", receive.size(), " to receive")};
  }
  MORACLE_CHECK(send[own].bytes == 0 || send[own].data == receive[own].data
                    ? Status()
                    : device_->copy(receive[own].data, send[own].data, send[own].bytes, stream));
  size_t peers = 0;
  for (size_t r = 0; r < size; ++r)
    peers = peers * 31 + (send[r].bytes > 0 ? 1 : 0) + (receive[r].bytes > 0 ? 2 : 0);
  return enqueue("ncclSend and ncclRecv", peers, stream, [&](cudaStream_t on) {
    ncclResult_t first = api_.ncclGroupStart();
    for (size_t i = 1; i < size; ++i) {
      // Stagger the peers, so that no rank receives from all at once.
      const size_t to = (own + i) % size, from = (own + size - i) % size;
      if (send[to].bytes > 0)
        keep_error(first, api_.ncclSend(send[to].data, send[to].bytes, ncclUint8,
                                        static_cast<int>(to), communicator_->get(), on));
      if (receive[from].bytes > 0)
        keep_error(first, api_.ncclRecv(receive[from].data, receive[from].bytes, ncclUint8,
                                        static_cast<int>(from), communicator_->get(), on));
    }
    keep_error(first, api_.ncclGroupEnd());
    return first;
  });
}

std::string nccl_lacks() {
  const Result<nccl::Api>& library = nccl::api();
  return library ? "" : library.error().fact;
}

Result<std::unique_ptr<Exchange>> make_nccl(std::shared_ptr<Group> group,
                                            std::shared_ptr<Device> device) {
  MORACLE_TRY(std::unique_ptr<NcclExchange> made,
              NcclExchange::make(std::move(group), std::move(device)));
  return std::unique_ptr<Exchange>(std::move(made));
}

Result<std::unique_ptr<Exchange>> make_nccl_on(std::shared_ptr<Group> group,
                                               std::shared_ptr<Device> device, void* communicator) {
  MORACLE_TRY(std::unique_ptr<NcclExchange> made,
              NcclExchange::make(std::move(group), std::move(device),
                                 static_cast<ncclComm_t>(communicator)));
  return std::unique_ptr<Exchange>(std::move(made));
}

}  // namespace moracle
#endif
