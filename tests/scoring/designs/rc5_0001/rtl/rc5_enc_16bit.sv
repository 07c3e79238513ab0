// One round of RC5 on two bytes, a step a clock. The keys are what the cellular automaton
// R90-R90-R150-R90-R150-R90-R150-R90 makes of the seed FF.
module rc5_enc_16bit (
    input  logic        clock,
    input  logic        reset,
    input  logic        enc_start,
    input  logic [15:0] p,
    output logic [15:0] c,
    output logic        enc_done
);
    function automatic [7:0] evolve(input [7:0] cells);
        evolve = {1'b0, cells[7:1]} ^ {cells[6:0], 1'b0} ^ (cells & 8'b0010_1010);
    endfunction

    function automatic [7:0] rotate(input [7:0] value, input [2:0] places);
        logic [15:0] twice;
        twice = {value, value} << places;
        rotate = twice[15:8];
    endfunction

    localparam [7:0] KEY_0 = evolve(8'hff), KEY_1 = evolve(KEY_0), KEY_2 = evolve(KEY_1), KEY_3 = evolve(KEY_2);

    logic [1:0] step = 0;
    logic [7:0] a, b;

    initial enc_done = 0;

    always_ff @(posedge clock)
        if (!reset) begin
            {step, a, b, c, enc_done} <= 0;
        end else if (enc_start) begin
            step <= step + 1;
            enc_done <= step == 3;
            case (step)
                0: begin
                    a <= p[15:8] + KEY_0;
                    b <= p[7:0] + KEY_1;
                end
                1: a <= rotate(a ^ b, b[2:0]) + KEY_2;
                2: b <= rotate(b ^ a, a[2:0]) + KEY_3;
                3: c <= {a, b};
            endcase
        end else begin
            step <= 0;
            enc_done <= 0;
        end
endmodule
