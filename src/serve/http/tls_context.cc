#ifdef MORACLE_WITH_HTTP
#include "serve/http/tls_context.h"

#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {
namespace {

#ifdef MORACLE_WITH_TLS
namespace ssl = boost::asio::ssl;

constexpr size_t kMaxPemBytes = size_t{1} << 20;

// OpenSSL reads memory, because its own errors of files name no reason.
Result<std::string> read_pem(const std::string& file, const char* place) {
  Result<std::string> text = read_small_file(file, kMaxPemBytes);
  if (text) return text;
  Error error = text.error();
  error.place = place;
  return error;
}

// Some codes of OpenSSL have no text in Boost ("asio.ssl error").
std::string fact_of(const boost::system::error_code& failure, const char* none) {
  const std::string text = failure.message();
  return text.empty() || text == "asio.ssl error" ? none : text;
}
#endif

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::open(const HttpOptions& options) {
  const std::string &cert = options.tls_cert, &key = options.tls_key;
  if (cert.empty() && key.empty()) return std::unique_ptr<TlsContext>();
  if (cert.empty() != key.empty()) {
    return Error{ErrorKind::kInvalidArgument, "", cert.empty() ? "tls_cert" : "tls_key",
                 "both the certificate and its key", "it is missing"};
  }
#ifdef MORACLE_WITH_TLS
  auto tls = std::make_unique<TlsContext>();
  boost::system::error_code failure;
  ssl::context& context = tls->context;
  context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                      ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 |
                      ssl::context::no_compression | ssl::context::single_dh_use);
  // OpenSSL would ask on the terminal.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return ""; });
  MORACLE_TRY(const std::string chain, read_pem(cert, "tls_cert"));
  context.use_certificate_chain(boost::asio::buffer(chain), failure);
  if (failure) {
    return Error{ErrorKind::kBadFile, cert, "tls_cert", "a certificate in PEM",
                 fact_of(failure, "it has none")};
  }
  MORACLE_TRY(const std::string secret, read_pem(key, "tls_key"));
  context.use_private_key(boost::asio::buffer(secret), ssl::context::pem, failure);
  if (failure) {
    return Error{ErrorKind::kBadFile, key, "tls_key",
                 "the key of the certificate in PEM, without a pass phrase",
                 fact_of(failure, "it has none")};
  }
  return tls;
#else
  return Error{ErrorKind::kUnsupported, "", "tls_cert",
               "a build with OpenSSL: install libssl-dev and build again", "this build has none"};
#endif
}

}  // namespace moracle::serve
#endif
