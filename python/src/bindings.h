// Binding functions, one per file, and shared types.
#pragma once

#include <nanobind/nanobind.h>
// Include the casters of standard types in every file: without them nanobind treats these types as
// bound classes.
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
void bind_moe(nb::module_& m);         ///< FusedMoe
void bind_linear(nb::module_& m);      ///< Linear
void bind_experts(nb::module_& m);     ///< experts and linear layers from tensors
void bind_model(nb::module_& m);       ///< Model, Generation
void bind_measuring(nb::module_& m);   ///< tune, bench_layer

/// Accepts a Scheme or its name.
Scheme scheme_of(nb::handle scheme);
/// Accepts a Machine, its name, or None for this machine.
Machine machine_of(nb::handle machine);
/// Accepts a Device or its name. Each name has one device per process.
std::shared_ptr<Device> device_of(nb::handle device);
/// Workspace shared by all layers on a device.
std::shared_ptr<Workspace> workspace_of(const std::shared_ptr<Device>& device);

/// Weights that one layer consumes. Errors of take: already consumed.
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

/// Throws in a fork of the process that opened its devices: threads do not survive a fork.
void check_not_forked();
/// True in a fork of the process that imported the module.
bool is_forked();

/// Owns a T. A forked child leaks it: the destructor would wait for threads that exist only in the
/// parent.
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
