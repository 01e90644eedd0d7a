#ifdef MORACLE_WITH_HTTP
#include "serve/http/tls_context.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle::serve {
namespace {

[[maybe_unused]] Error wrong_tls_file(const std::string& file, const char* place, const char* need,
                                      const std::string& fact) {
  return {ErrorKind::kBadFile, file, place, need, fact};
}

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::open(const HttpOptions& options) {
  const std::string &cert = options.tls_cert, &key = options.tls_key;
  if (cert.empty() && key.empty()) return std::unique_ptr<TlsContext>();
  if (cert.empty() != key.empty()) {
    return Error{ErrorKind::kInvalidArgument, "", cert.empty() ? "tls_cert" : "tls_key",
                 "both the certificate and its key", "it is missing"};
  }
#ifdef MORACLE_WITH_TLS
  namespace ssl = boost::asio::ssl;
  auto tls = std::make_unique<TlsContext>();
  boost::system::error_code failure;
  ssl::context& context = tls->context;
  context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                      ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 |
                      ssl::context::no_compression | ssl::context::single_dh_use);
  // OpenSSL would ask on the terminal.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return ""; });
  context.use_certificate_chain_file(cert, failure);
  if (failure) return wrong_tls_file(cert, "tls_cert", "a certificate in PEM", failure.message());
  context.use_private_key_file(key, ssl::context::pem, failure);
  if (failure) {
    return wrong_tls_file(key, "tls_key",
                          "the key of the certificate in PEM, without a pass phrase",
                          failure.message());
  }
  return tls;
#else
  return Error{ErrorKind::kUnsupported, "", "tls_cert",
               "a build with OpenSSL: install libssl-dev and build again", "this build has none"};
#endif
}

}  // namespace moracle::serve
#endif
