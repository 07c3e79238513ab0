module verified_counter(input clk, input rst_n, output reg [3:0] count);
    always @(posedge clk or negedge rst_n)
        if (!rst_n) count <= 0;
        else count <= count + 3;
endmodule
