// The parts of the module, one file each, and the types that several of them share.
#pragma once

#include <nanobind/nanobind.h>
// The casters of standard types: a file without them would treat these types as bound classes.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>

#include "errors.h"
#include "moracle/moracle.h"

namespace moracle::python {

void bind_schemes(nb::module_& m);     ///< Scheme
void bind_layers(nb::module_& m);      ///< LayerSpec, DescribedWeights, DescribedMatrix
void bind_oracle(nb::module_& m);      ///< Machine, Selection, select
void bind_checkpoint(nb::module_& m);  ///< Checkpoint, quantize
void bind_device(nb::module_& m);      ///< Device
void bind_moe(nb::module_& m);         ///< FusedMoe, Linear
void bind_experts(nb::module_& m);     ///< experts from tensors
void bind_model(nb::module_& m);       ///< Model, Generation
void bind_measuring(nb::module_& m);   ///< tune, bench_layer

/// A Scheme, or its name.
Scheme scheme_of(nb::handle scheme);
/// A Machine, its name, or None for this machine.
Machine machine_of(nb::handle machine);
/// "cpu", "cuda:0": one device per name and process. A Device: itself.
std::shared_ptr<Device> device_of(nb::handle device);
/// The scratch memory that all layers on a device share.
std::shared_ptr<Workspace> workspace_of(const std::shared_ptr<Device>& device);

/// Weights that a layer consumes once. Errors of take: they were already consumed.
template <class Weights>
class Consumable {
 public:
  explicit Consumable(Weights weights) : weights_(std::move(weights)) {}
  const Weights& get() const { return check(), weights_; }
  Weights& get() { return check(), weights_; }
  Weights take() { return check(), consumed_ = true, std::move(weights_); }
  bool consumed() const { return consumed_; }

 private:
  void check() const {
    if (consumed_)
      fail_argument("weights", "weights that no layer has consumed", "a layer has consumed them");
  }
  Weights weights_;
  bool consumed_ = false;
};

/// Throws if this process is a fork of the one that opened its devices: threads do not survive it.
void check_not_forked();
/// True in a fork of the process that imported the module.
bool is_forked();

/// Owns a T. A forked child does not destroy it, because it would wait for threads that only the
/// parent has.
template <class T>
class Owned {
 public:
  explicit Owned(T value) : value_(new T(std::move(value))) {}
  Owned(Owned&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Owned& operator=(Owned&&) = delete;
  ~Owned() {
    if (!is_forked()) delete value_;
  }
  T& operator*() const { return check_not_forked(), *value_; }
  T* operator->() const { return &**this; }

 private:
  T* value_;
};

}  // namespace moracle::python
