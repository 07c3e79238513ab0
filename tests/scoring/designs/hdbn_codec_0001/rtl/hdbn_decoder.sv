module hdbn_decoder #(
    parameter integer encoder_type = 3,
    parameter logic pulse_active_state = 1'b1
) (
    input  logic reset_in,
    input  logic clk_in,
    input  logic clk_enable_in,
    input  logic p_in,
    input  logic n_in,
    output logic data_out,
    output logic code_error_out
);
    localparam N = encoder_type;

    logic       p, n;
    logic       positive, pulse_seen;                // the last pulse
    logic       violation_positive, violation_seen;  // the last violation
    logic [2:0] zeros;
    logic [N:0] data, error;

    wire both = p && n;
    wire pulse = p ^ n;
    wire repeated = pulse && pulse_seen && p == positive;
    // N zeros lie before a violation that stands alone, one less where a balance pulse took the first one's place.
    wire alone = repeated && zeros == N;
    wire balanced = repeated && zeros == N - 1;
    wire violation = alone || balanced;
    wire bad_violation = repeated && (!violation || (violation_seen && p == violation_positive));
    wire missing_violation = !p && !n && zeros >= N;

    assign data_out = data[N];
    assign code_error_out = error[N];

    always_ff @(posedge clk_in or posedge reset_in)
        if (reset_in)
            {p, n, positive, pulse_seen, violation_positive, violation_seen, zeros, data, error} <= 0;
        else if (clk_enable_in) begin
            p <= p_in == pulse_active_state;
            n <= n_in == pulse_active_state;

            if (p || n) zeros <= 0;
            else if (zeros <= N) zeros <= zeros + 1;

            if (pulse) {pulse_seen, positive} <= {1'b1, p};
            if (violation) {violation_seen, violation_positive} <= {1'b1, p};

            // The balance pulse has got as far as to the last place but one when its violation is seen.
            data <= {data[N-1] && !balanced, data[N-2:0], (pulse && !violation) || both};
            error <= {error[N-1:0], both || bad_violation || missing_violation};
        end
endmodule
