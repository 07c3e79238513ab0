module phase_lut #(
    parameter NBW_IN    = 6,
    parameter NBI_IN    = 1,
    parameter NBW_PHASE = 9,
    parameter NBI_PHASE = 1
) (
    input  logic                        clk,
    input  logic                        rst_async_n,
    input  logic signed [NBW_IN-1:0]    i_data_i,
    input  logic signed [NBW_IN-1:0]    i_data_q,
    output logic signed [NBW_PHASE-1:0] o_phase
);
    localparam NBF_IN    = NBW_IN - NBI_IN;
    localparam NBF_PHASE = NBW_PHASE - NBI_PHASE;

    // Magnitudes run from 0 to 2^NBF_IN, both included: (2^NBF_IN + 1)^2 pairs.
    localparam SIDE      = 2 ** NBF_IN + 1;
    localparam LUT_SIZE  = SIDE * SIDE;
    localparam NBW_INDEX = $clog2(LUT_SIZE);
    localparam [NBW_PHASE-1:0] PI = 2 ** NBF_PHASE;

    typedef logic [LUT_SIZE*NBF_PHASE-1:0] lut_t;

    // atan2(q, i) / pi for i, q >= 0, rounded to NBF_PHASE fractional bits; entry 0, (0, 0), is 0.
    function automatic lut_t first_quadrant();
        for (int i = 0; i < SIDE; i++)
            for (int q = 0; q < SIDE; q++)
                first_quadrant[(i*SIDE + q)*NBF_PHASE +: NBF_PHASE] =
                    $rtoi($atan2(1.0 * q, 1.0 * i) / $acos(-1.0) * 2.0 ** NBF_PHASE + 0.5);
    endfunction

    localparam lut_t LUT = first_quadrant();

    function automatic logic [NBW_IN-1:0] magnitude(input logic signed [NBW_IN-1:0] data);
        return data < 0 ? -data : data;
    endfunction

    logic [NBW_INDEX-1:0] index_ff;
    logic                 neg_i_ff, neg_q_ff;
    logic [NBW_PHASE-1:0] angle;

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) begin
            index_ff <= '0;
            neg_i_ff <= 1'b0;
            neg_q_ff <= 1'b0;
        end else begin
            index_ff <= magnitude(i_data_i) * SIDE + magnitude(i_data_q);
            neg_i_ff <= i_data_i < 0;
            neg_q_ff <= i_data_q < 0;
        end

    always_comb begin
        if (index_ff < LUT_SIZE) angle = LUT[index_ff*NBF_PHASE +: NBF_PHASE];
        else                     angle = '0;

        if (neg_i_ff)
            if (neg_q_ff) o_phase = angle - PI;
            else          o_phase = PI - angle;
        else
            if (neg_q_ff) o_phase = -angle;
            else          o_phase = angle;
    end
endmodule
