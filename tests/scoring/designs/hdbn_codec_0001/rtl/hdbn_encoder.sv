module hdbn_encoder #(
    parameter integer encoder_type = 3,  // the zeros that may follow each other
    parameter logic pulse_active_state = 1'b1
) (
    input  logic reset_in,
    input  logic clk_in,
    input  logic clk_enable_in,
    input  logic data_in,
    input  logic output_gate_in,
    output logic p_out,
    output logic n_out
);
    localparam N = encoder_type;

    logic       data, odd, positive, p, n;
    logic [1:0] zeros;
    logic [N:0] pulse, violation;  // bit N is the oldest: it leaves next

    wire insert = !data && zeros == N;
    wire next_positive = violation[N] ? positive : !positive;

    assign p_out = p ? pulse_active_state : ~pulse_active_state;
    assign n_out = n ? pulse_active_state : ~pulse_active_state;

    always_ff @(posedge clk_in or posedge reset_in)
        if (reset_in) begin
            {data, zeros, pulse, violation, positive, p, n} <= 0;
            // As if one negative pulse had followed a positive violation: the running sum starts in its range.
            odd <= 1;
        end else if (clk_enable_in) begin
            data <= data_in;
            zeros <= data || insert ? 0 : zeros + 1;

            // The violation takes the place of the last zero. The first one, which now reaches the oldest place, becomes
            // a balance pulse where violations would not alternate otherwise.
            pulse <= {pulse[N-1] || (insert && !odd), pulse[N-2:0], data || insert};
            violation <= {violation[N-1:0], insert};
            odd <= insert ? 0 : odd ^ data;

            if (pulse[N]) positive <= next_positive;
            p <= pulse[N] && next_positive && output_gate_in;
            n <= pulse[N] && !next_positive && output_gate_in;
        end
endmodule
