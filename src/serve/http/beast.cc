// Compiles the non-template code of Boost.Asio and Boost.Beast.
#ifdef MORACLE_WITH_HTTP
#include <boost/asio/impl/src.hpp>
#ifdef MORACLE_WITH_TLS
#include <boost/asio/ssl/impl/src.hpp>
#endif
#include <boost/beast/src.hpp>
#endif
