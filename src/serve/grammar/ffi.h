// tvm-ffi's C interface, loaded at run time: the functions that xgrammar registers, by name.
#pragma once

#ifdef MORACLE_WITH_XGRAMMAR
#include <tvm/ffi/c_api.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "moracle/base.h"

namespace moracle::serve {

class Ffi;

/// Owning handle of a tvm-ffi object.
class FfiValue {
 public:
  FfiValue() = default;
  FfiValue(std::shared_ptr<const Ffi> ffi, TVMFFIAny owned) : ffi_(std::move(ffi)), any_(owned) {}
  FfiValue(FfiValue&& other) noexcept { *this = std::move(other); }
  FfiValue& operator=(FfiValue&& other) noexcept;
  ~FfiValue();

  /// Converts to a call argument.
  const TVMFFIAny& any() const { return any_; }
  bool is_true() const { return any_.type_index == kTVMFFIBool && any_.v_int64 != 0; }

 private:
  std::shared_ptr<const Ffi> ffi_;
  TVMFFIAny any_{};
};

/// Non-owning call arguments.
inline TVMFFIAny ffi_none() {
  return {};
}
TVMFFIAny ffi_int(int64_t value);
TVMFFIAny ffi_bool(bool value);
TVMFFIAny ffi_text(const std::string& text);
TVMFFIAny ffi_tensor(DLTensor& tensor);

/// The loaded libraries. Engine errors become kUnsupported, with the engine's message as the fact.
class Ffi : public std::enable_shared_from_this<Ffi> {
 public:
  /// Loads tvm_ffi/lib/libtvm_ffi.so and xgrammar/libxgrammar_bindings.so of `folder`. Never
  /// unloads them. Errors: kUnsupported with the loader's message.
  static Result<std::shared_ptr<const Ffi>> load(const std::string& folder);
  Ffi() = default;
  Ffi(const Ffi&) = delete;
  Ffi& operator=(const Ffi&) = delete;
  ~Ffi();

  /// Looks up a method of an xgrammar type.
  Result<FfiValue> method(const std::string& type, std::string_view name) const;
  Result<FfiValue> call(const FfiValue& function, std::span<const TVMFFIAny> arguments) const;
  Result<FfiValue> bytes(std::string_view text) const;
  Result<FfiValue> array(std::span<const TVMFFIAny> items) const;
  void release(const TVMFFIAny& owned) const;

 private:
  Error raised() const;
  Result<FfiValue> call(const TVMFFIAny& function, std::span<const TVMFFIAny> arguments) const;
  FfiValue own(const TVMFFIAny& any) const { return {shared_from_this(), any}; }

  decltype(&TVMFFIGetVersion) get_version_ = nullptr;
  decltype(&TVMFFIObjectIncRef) inc_ref_ = nullptr;
  decltype(&TVMFFIObjectDecRef) dec_ref_ = nullptr;
  decltype(&TVMFFITypeKeyToIndex) type_index_ = nullptr;
  decltype(&TVMFFIGetTypeInfo) type_info_ = nullptr;
  decltype(&TVMFFIFunctionGetGlobal) global_ = nullptr;
  decltype(&TVMFFIFunctionCall) call_ = nullptr;
  decltype(&TVMFFIErrorMoveFromRaised) take_error_ = nullptr;
  decltype(&TVMFFIBytesFromByteArray) bytes_ = nullptr;
  TVMFFIAny make_array_{};
};

}  // namespace moracle::serve
#endif
