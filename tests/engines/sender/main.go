// Command sender posts one remote-write 2.0 request as the reference client does (client_golang/exp): series with
// metadata, an exemplar and a start time each, and one native histogram. It prints one JSON line: what the receiver
// confirmed, how often it was asked again, and the error it ended with.
//
// The start time of a series moved while the protocol was young: `-layout series` puts it into field 6 of TimeSeries,
// `-layout sample` into field 3 of Sample and field 17 of Histogram (Prometheus 3.15).
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/client_golang/exp/api/remote"
	writev2 "github.com/prometheus/client_golang/exp/api/remote/genproto/v2"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	startOfSampleField    = 3
	startOfHistogramField = 17
	layoutSeries          = "series"
	layoutSample          = "sample"
)

type labels map[string]string

func (l labels) String() string { return fmt.Sprint(map[string]string(l)) }

func (l labels) Set(text string) error {
	name, value, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("%q is not NAME=VALUE", text)
	}
	l[name] = value
	return nil
}

type options struct {
	url, path, metric, vary, layout    string
	labels                             labels
	series, samples, exemplars         int
	histogram, isChunked               bool
	nowMillis, stepMillis, startMillis int64
	retries                            int
	backOff                            time.Duration
	authority, certificate, key, token string
}

type outcome struct {
	Samples    int    `json:"samples"`
	Histograms int    `json:"histograms"`
	Exemplars  int    `json:"exemplars"`
	Retries    int    `json:"retries"`
	Error      string `json:"error"`
}

func main() {
	o := parse()
	client, err := httpClient(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	api, err := remote.NewAPI(o.url,
		remote.WithAPIPath(o.path),
		remote.WithAPIHTTPClient(client),
		remote.WithAPIBackoff(remote.BackoffConfig{Min: o.backOff, Max: 10 * o.backOff, MaxRetries: o.retries}),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	said := outcome{}
	written, err := api.Write(context.Background(), remote.WriteV2MessageType, request(o),
		remote.WithWriteRetryCallback(func(error) { said.Retries++ }))
	said.Samples, said.Histograms, said.Exemplars = written.Samples, written.Histograms, written.Exemplars
	if err != nil {
		said.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		os.Exit(2)
	}
	if said.Error != "" {
		os.Exit(1)
	}
}

func parse() options {
	o := options{labels: labels{}}
	flag.StringVar(&o.url, "url", "", "receiver, such as http://127.0.0.1:9201")
	flag.StringVar(&o.path, "path", "/api/v1/write", "path of its endpoint")
	flag.StringVar(&o.metric, "metric", "DCGM_FI_DEV_GPU_UTIL", "name of every series")
	flag.Var(o.labels, "label", "label of every series, NAME=VALUE; may be repeated")
	flag.StringVar(&o.vary, "vary", "UUID", "label that tells the series apart: GPU-0, GPU-1 …")
	flag.IntVar(&o.series, "series", 1, "how many series")
	flag.IntVar(&o.samples, "samples", 1, "samples of each")
	flag.IntVar(&o.exemplars, "exemplars", 1, "exemplars of each")
	flag.BoolVar(&o.histogram, "histogram", true, "one series more: a native histogram")
	flag.StringVar(&o.layout, "layout", layoutSeries, "where the start time stands: series or sample")
	flag.BoolVar(&o.isChunked, "chunked", false, "send the body in chunks, without its length")
	flag.Int64Var(&o.nowMillis, "now", time.Now().UnixMilli(), "time of the newest sample, ms since 1970")
	flag.Int64Var(&o.stepMillis, "step", 15_000, "ms between two samples of a series")
	flag.Int64Var(&o.startMillis, "start", 0, "start time of all series, ms since 1970; an hour before now unless given")
	flag.IntVar(&o.retries, "retries", 10, "give up after this many")
	flag.DurationVar(&o.backOff, "back-off", 50*time.Millisecond, "shortest wait before asking again")
	flag.StringVar(&o.authority, "ca", "", "certificate that the receiver's must be signed by, PEM")
	flag.StringVar(&o.certificate, "cert", "", "our own certificate, PEM")
	flag.StringVar(&o.key, "key", "", "its key, PEM")
	flag.StringVar(&o.token, "token", "", "bearer token")
	flag.Parse()
	if o.url == "" || (o.layout != layoutSeries && o.layout != layoutSample) {
		flag.Usage()
		os.Exit(2)
	}
	if o.startMillis == 0 {
		o.startMillis = o.nowMillis - time.Hour.Milliseconds()
	}
	return o
}

func request(o options) *writev2.Request {
	symbols := writev2.NewSymbolTable()
	made := &writev2.Request{}
	for i := range o.series {
		series := &writev2.TimeSeries{
			LabelsRefs: refs(&symbols, o, o.metric, fmt.Sprintf("GPU-%d", i)),
			Metadata: &writev2.Metadata{
				Type: writev2.Metadata_METRIC_TYPE_GAUGE, HelpRef: symbols.Symbolize("what it measures"),
				UnitRef: symbols.Symbolize("percent"),
			},
		}
		for j := range o.samples {
			at := o.nowMillis - int64(o.samples-1-j)*o.stepMillis
			sample := &writev2.Sample{Value: float64((i + j) % 101), Timestamp: at}
			if o.layout == layoutSample {
				addVarint(sample, startOfSampleField, o.startMillis)
			}
			series.Samples = append(series.Samples, sample)
		}
		for j := range o.exemplars {
			trace := []string{"trace_id", fmt.Sprintf("%d-%d", i, j)}
			series.Exemplars = append(series.Exemplars, &writev2.Exemplar{
				LabelsRefs: symbols.SymbolizeLabels(trace, nil), Value: 1, Timestamp: o.nowMillis,
			})
		}
		if o.layout == layoutSeries {
			series.CreatedTimestamp = o.startMillis
		}
		made.Timeseries = append(made.Timeseries, series)
	}
	if o.histogram {
		made.Timeseries = append(made.Timeseries, histogram(&symbols, o))
	}
	made.Symbols = symbols.Symbols()
	return made
}

// histogram is a series with three observations in two neighbouring buckets of a native histogram.
func histogram(symbols *writev2.SymbolsTable, o options) *writev2.TimeSeries {
	point := &writev2.Histogram{
		Count: &writev2.Histogram_CountInt{CountInt: 3}, Sum: 4, Schema: 1, ZeroThreshold: 1e-128,
		ZeroCount:      &writev2.Histogram_ZeroCountInt{},
		PositiveSpans:  []*writev2.BucketSpan{{Offset: 0, Length: 2}},
		PositiveDeltas: []int64{1, 1},
		Timestamp:      o.nowMillis,
	}
	series := &writev2.TimeSeries{
		LabelsRefs: refs(symbols, o, "request_seconds", "GPU-0"),
		Metadata:   &writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_HISTOGRAM},
		Histograms: []*writev2.Histogram{point},
	}
	if o.layout == layoutSample {
		addVarint(point, startOfHistogramField, o.startMillis)
	} else {
		series.CreatedTimestamp = o.startMillis
	}
	return series
}

// refs are a series' labels in the order that the protocol demands: by name.
func refs(symbols *writev2.SymbolsTable, o options, metric, varied string) []uint32 {
	all := labels{"__name__": metric, o.vary: varied}
	for name, value := range o.labels {
		all[name] = value
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	pairs := make([]string, 0, 2*len(names))
	for _, name := range names {
		pairs = append(pairs, name, all[name])
	}
	return symbols.SymbolizeLabels(pairs, nil)
}

// addVarint writes a field that the client's own, older messages do not know.
func addVarint(message proto.Message, field protowire.Number, value int64) {
	bytes := protowire.AppendTag(message.ProtoReflect().GetUnknown(), field, protowire.VarintType)
	message.ProtoReflect().SetUnknown(protowire.AppendVarint(bytes, uint64(value)))
}

func httpClient(o options) (*http.Client, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.authority != "" {
		pem, err := os.ReadFile(o.authority)
		if err != nil {
			return nil, err
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", o.authority)
		}
	}
	if o.certificate != "" {
		pair, err := tls.LoadX509KeyPair(o.certificate, o.key)
		if err != nil {
			return nil, err
		}
		trust.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &transport{options: o, next: &http.Transport{TLSClientConfig: trust}}}, nil
}

// transport adds what the reference client has no option for.
type transport struct {
	options options
	next    http.RoundTripper
}

func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := request.Clone(request.Context())
	if t.options.token != "" {
		sent.Header.Set("Authorization", "Bearer "+t.options.token)
	}
	if t.options.isChunked {
		sent.ContentLength = -1
	}
	return t.next.RoundTrip(sent)
}
