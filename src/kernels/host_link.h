// Between a device and the host: the two parts of a layer whose experts lie on both.
#pragma once

#include <memory>

#include "moracle/base.h"
#include "moracle/device.h"

namespace moracle {

/// What a call needs at most.
struct HostLinkSize {
  int64_t num_tokens = 0, hidden_size = 0, top_k = 0;
  DType dtype = DType::kF32;  ///< of activations

  int64_t choices() const { return num_tokens * top_k; }
  int64_t bytes() const { return num_tokens * hidden_size * bits(dtype) / 8; }
};

/// For each call in this order: send() and add() are enqueued on one stream; the host calls
/// arrived(), computes its part and calls answer(). Where the device waits for the answer, add()
/// may come before it, and a graph may record both; otherwise add() comes after it. All calls hold
/// the device's lock.
class HostLink {
 public:
  /// What the host adds to the output.
  enum class Part : uint8_t { kNone, kSum };

  virtual ~HostLink() = default;
  virtual bool device_waits() const = 0;
  /// Memory of the device that send() copies.
  struct Call {
    Matrix hidden;  ///< [num_tokens, hidden_size] without gaps
    const int32_t* ids = nullptr;
    const float* weights = nullptr;
    int64_t choices = 0;                ///< of ids and weights
    const int32_t* lora_ids = nullptr;  ///< [num_tokens]; null: no adapters
  };
  /// Enqueues copies to hidden(), ids(), weights() and lora_ids().
  virtual Status send(const Call& call, Stream stream) = 0;
  /// Waits until the copies of one send() have arrived. Errors: those of the device.
  virtual Status arrived(Stream stream) = 0;
  /// Ends the host's part of that call. kSum: it lies in sum().
  virtual void answer(Part part) = 0;
  /// Microseconds that the device has waited for answers. Only where the device waits.
  virtual double waited_us() const { return 0; }
  /// Enqueues output += sum(), if the host had a part.
  virtual Status add(const Matrix& output, Stream stream) = 0;

  std::byte* hidden() const { return hidden_.as<std::byte>(); }
  int32_t* ids() const { return ids_.as<int32_t>(); }
  float* weights() const { return weights_.as<float>(); }
  int32_t* lora_ids() const { return lora_ids_.as<int32_t>(); }
  std::byte* sum() const { return sum_.as<std::byte>(); }

 protected:
  /// Allocates host memory that the device accesses at full speed. Errors: memory.
  Status open(Device& device, const HostLinkSize& size);

 private:
  Buffer hidden_, ids_, weights_, lora_ids_, sum_;
};

/// The link of a device that copies and synchronizes. Errors: memory.
Result<std::unique_ptr<HostLink>> plain_host_link(Device& device, const HostLinkSize& size);

}  // namespace moracle
