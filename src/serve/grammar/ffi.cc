#ifdef MORACLE_WITH_XGRAMMAR
#include "serve/grammar/ffi.h"

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"
#include "oracle/machine/shared_library.h"

namespace moracle::serve {
namespace {

constexpr const char* kPackages =
    "the Python packages apache-tvm-ffi and xgrammar in the folder of the grammar engine";

Error not_loaded(const std::string& fact) {
  return {ErrorKind::kUnsupported, "", "", kPackages, printable(fact)};
}

TVMFFIByteArray byte_view(std::string_view text) {
  return {text.data(), text.size()};
}

TVMFFIAny value_of_type(int32_t type) {
  TVMFFIAny any{};
  any.type_index = type;
  return any;
}

}  // namespace

FfiValue& FfiValue::operator=(FfiValue&& other) noexcept {
  std::swap(ffi_, other.ffi_);
  std::swap(any_, other.any_);
  return *this;
}

FfiValue::~FfiValue() {
  if (ffi_) ffi_->release(any_);
}

TVMFFIAny ffi_int(int64_t value) {
  TVMFFIAny any = value_of_type(kTVMFFIInt);
  any.v_int64 = value;
  return any;
}

TVMFFIAny ffi_bool(bool value) {
  TVMFFIAny any = value_of_type(kTVMFFIBool);
  any.v_int64 = value ? 1 : 0;
  return any;
}

TVMFFIAny ffi_text(const std::string& text) {
  TVMFFIAny any = value_of_type(kTVMFFIRawStr);
  any.v_c_str = text.c_str();
  return any;
}

TVMFFIAny ffi_tensor(DLTensor& tensor) {
  TVMFFIAny any = value_of_type(kTVMFFIDLTensorPtr);
  any.v_ptr = &tensor;
  return any;
}

Result<std::shared_ptr<const Ffi>> Ffi::load(const std::string& folder) {
  // Load libtvm_ffi.so first: xgrammar links to it by name, and the loader then reuses it.
  SharedLibrary library(folder + "/tvm_ffi/lib/libtvm_ffi.so");
  if (!library.load_error().empty()) return not_loaded(library.load_error());
  auto ffi = std::make_shared<Ffi>();
  library.find(ffi->get_version_, "TVMFFIGetVersion");
  library.find(ffi->inc_ref_, "TVMFFIObjectIncRef");
  library.find(ffi->dec_ref_, "TVMFFIObjectDecRef");
  library.find(ffi->type_index_, "TVMFFITypeKeyToIndex");
  library.find(ffi->type_info_, "TVMFFIGetTypeInfo");
  library.find(ffi->global_, "TVMFFIFunctionGetGlobal");
  library.find(ffi->call_, "TVMFFIFunctionCall");
  library.find(ffi->take_error_, "TVMFFIErrorMoveFromRaised");
  library.find(ffi->bytes_, "TVMFFIBytesFromByteArray");
  if (!library.missing().empty()) return not_loaded(library.missing());
  TVMFFIVersion version{};
  ffi->get_version_(&version);
  // Reject other minor versions: the struct layout may change with them.
  if (version.major != TVM_FFI_VERSION_MAJOR || version.minor != TVM_FFI_VERSION_MINOR) {
    return not_loaded(str("apache-tvm-ffi is version ", version.major, ".", version.minor,
                          ", the build has the headers of ", TVM_FFI_VERSION_MAJOR, ".",
                          TVM_FFI_VERSION_MINOR));
  }
  const SharedLibrary engine(folder + "/xgrammar/libxgrammar_bindings.so");
  if (!engine.load_error().empty()) return not_loaded(engine.load_error());
  const TVMFFIByteArray name = byte_view("ffi.Array");
  TVMFFIAny function = value_of_type(kTVMFFIFunction);
  if (ffi->global_(&name, &function.v_ptr) != 0) return ffi->raised();
  if (function.v_ptr == nullptr) return not_loaded("apache-tvm-ffi has no function ffi.Array");
  // Not an FfiValue: its reference to the library would be a cycle and keep it loaded.
  ffi->make_array_ = function;
  return std::shared_ptr<const Ffi>(std::move(ffi));
}

Ffi::~Ffi() {
  if (dec_ref_ != nullptr) release(make_array_);
}

Result<FfiValue> Ffi::method(const std::string& type, std::string_view name) const {
  const std::string key = "xgrammar.tvm_ffi_binding." + type;
  const TVMFFIByteArray type_key = byte_view(key);
  int32_t index = 0;
  if (type_index_(&type_key, &index) != 0) return raised();
  const TVMFFITypeInfo* const info = type_info_(index);
  for (int32_t i = 0; info != nullptr && i < info->num_methods; ++i) {
    const TVMFFIMethodInfo& method = info->methods[i];
    if (std::string_view(method.name.data, method.name.size) != name) continue;
    if (inc_ref_(method.method.v_ptr) != 0) return raised();
    return own(method.method);
  }
  return not_loaded(str("xgrammar has no ", type, ".", name));
}

Result<FfiValue> Ffi::call(const FfiValue& function, std::span<const TVMFFIAny> arguments) const {
  return call(function.any(), arguments);
}

Result<FfiValue> Ffi::call(const TVMFFIAny& function, std::span<const TVMFFIAny> arguments) const {
  TVMFFIAny result{};
  if (call_(function.v_ptr, const_cast<TVMFFIAny*>(arguments.data()),
            static_cast<int32_t>(arguments.size()), &result) != 0) {
    return raised();
  }
  return own(result);
}

Result<FfiValue> Ffi::bytes(std::string_view text) const {
  const TVMFFIByteArray content = byte_view(text);
  TVMFFIAny made{};
  if (bytes_(&content, &made) != 0) return raised();
  return own(made);
}

Result<FfiValue> Ffi::array(std::span<const TVMFFIAny> items) const {
  return call(make_array_, items);
}

void Ffi::release(const TVMFFIAny& owned) const {
  if (owned.type_index >= kTVMFFIStaticObjectBegin) dec_ref_(owned.v_ptr);
}

Error Ffi::raised() const {
  TVMFFIObjectHandle error = nullptr;
  take_error_(&error);
  std::string fact = "the engine gave no reason";
  if (error != nullptr) {
    const TVMFFIByteArray& message = TVMFFIErrorGetCellPtr(error)->message;
    fact.assign(message.data, message.size);
    dec_ref_(error);
  }
  // Strip the time and source file from the message.
  if (const size_t at = fact.find(".cc:"); at != fact.npos) {
    const size_t end = fact.find(": ", at);
    if (end != fact.npos) fact.erase(0, end + 2);
  }
  while (!fact.empty() && fact.back() == '\n') fact.pop_back();
  return {ErrorKind::kUnsupported, "", "", "a compatible version of xgrammar", printable(fact)};
}

}  // namespace moracle::serve
#endif
